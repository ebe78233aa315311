// Notes which graphs a session has already run.
//
// TensorFlow silently ignores edits of a node that a session has taken over, so
// a rewrite of such a graph would look done and do nothing. Before a session
// runs a graph, TensorFlow hands the whole of it to the registered optimization
// passes; this one only reads and changes nothing. It notes the token that the
// front stamps on a graph's tables, and, for graphs run before they had any, a
// fingerprint of their nodes' names and the session: each makes devices of its
// own, whose incarnation numbers it shows to Python too. Only the sessions of
// one tf.train.Server share theirs.
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "c_api.h"
#include "tensorflow/core/common_runtime/device_set.h"
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
  std::map<uint64_t, std::set<Fingerprint>> fingerprints;  // by incarnation
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
    // The body of a function is no graph that a session was given.
    if (options.is_function_graph || options.device_set == nullptr) {
      return tensorflow::Status();
    }
    for (const tensorflow::Device* device : options.device_set->devices()) {
      Seen().fingerprints[device->attributes().incarnation()].insert(names);
    }
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

extern "C" int mxrec_beginning_was_run(const char* names,
                                       const uint64_t* incarnations,
                                       int num_incarnations) {
  std::lock_guard<std::mutex> lock(mxrec_ops::Seen().mutex);
  const auto& seen = mxrec_ops::Seen().fingerprints;
  std::set<mxrec_ops::Fingerprint> of_sessions;
  for (int i = 0; i < num_incarnations; ++i) {
    const auto found = seen.find(incarnations[i]);
    if (found == seen.end()) continue;
    of_sessions.insert(found->second.begin(), found->second.end());
  }
  mxrec_ops::Fingerprint so_far = {0, 0};
  std::string_view rest(names);
  while (!rest.empty()) {
    const size_t length = std::min(rest.find('\n'), rest.size());
    mxrec_ops::AddName(rest.substr(0, length), &so_far);
    if (of_sessions.count(so_far) != 0) return 1;
    rest.remove_prefix(std::min(length + 1, rest.size()));
  }
  return 0;
}
