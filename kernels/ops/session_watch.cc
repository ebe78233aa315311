// Notes which graphs a session has already run.
//
// TensorFlow silently ignores edits of a node that a session has taken over, so
// a rewrite of such a graph would look done and do nothing. Before a session
// runs a graph, TensorFlow hands the whole of it to the registered optimization
// passes; this one only reads and changes nothing. It notes the token that the
// front stamps on a graph's tables, and, for graphs run before they had any, a
// fingerprint of their nodes' names.
#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "c_api.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace mxrec_ops {
namespace {

constexpr char kTokenAttr[] = "_mx_rec_graph";

// Of a set of names, whatever their order: how many, and their hashes combined.
using Fingerprint = std::pair<int64_t, uint64_t>;

void AddName(std::string_view name, Fingerprint* fingerprint) {
  ++fingerprint->first;
  fingerprint->second ^= std::hash<std::string_view>()(name);
}

struct SeenGraphs {
  std::mutex mutex;
  std::unordered_set<std::string> tokens;
  std::set<Fingerprint> fingerprints;
};

SeenGraphs& Seen() {
  static SeenGraphs* seen = new SeenGraphs;
  return *seen;
}

class SessionWatchPass : public tensorflow::GraphOptimizationPass {
 public:
  tensorflow::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) {
      return tensorflow::Status();
    }
    std::lock_guard<std::mutex> lock(Seen().mutex);
    Fingerprint names = {0, 0};
    for (const tensorflow::Node* node : (*options.graph)->op_nodes()) {
      AddName(node->name(), &names);
      if (node->type_string() != "MxRecTable") continue;
      const tensorflow::AttrValue* token = node->attrs().Find(kTokenAttr);
      if (token != nullptr) Seen().tokens.insert(token->s());
    }
    Seen().fingerprints.insert(names);
    return tensorflow::Status();
  }
};

// First of all, so that it sees the graph as the session got it.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT,
                      -1000, SessionWatchPass);

}  // namespace
}  // namespace mxrec_ops

extern "C" int mxrec_graph_was_run(const char* token) {
  std::lock_guard<std::mutex> lock(mxrec_ops::Seen().mutex);
  return mxrec_ops::Seen().tokens.count(token) != 0 ? 1 : 0;
}

extern "C" int mxrec_beginning_was_run(const char* names) {
  std::lock_guard<std::mutex> lock(mxrec_ops::Seen().mutex);
  const auto& seen = mxrec_ops::Seen().fingerprints;
  mxrec_ops::Fingerprint so_far = {0, 0};
  std::string_view rest(names);
  while (!rest.empty()) {
    const size_t length = std::min(rest.find('\n'), rest.size());
    mxrec_ops::AddName(rest.substr(0, length), &so_far);
    if (seen.count(so_far) != 0) return 1;
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
  return 0;
}
