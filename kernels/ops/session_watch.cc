// Notes which graphs a session has already run.
//
// TensorFlow silently ignores edits of a node that a session has taken over, so
// a rewrite of such a graph would look done and do nothing. Before a session
// runs a graph, TensorFlow hands the whole of it to the registered optimization
// passes; this one only reads the graph's token and changes nothing.
#include <mutex>
#include <string>
#include <unordered_set>

#include "c_api.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace mxrec_ops {
namespace {

constexpr char kTokenAttr[] = "_mx_rec_graph";

struct SeenTokens {
  std::mutex mutex;
  std::unordered_set<std::string> tokens;
};

SeenTokens& Seen() {
  static SeenTokens* seen = new SeenTokens;
  return *seen;
}

class SessionWatchPass : public tensorflow::GraphOptimizationPass {
 public:
  tensorflow::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) {
      return tensorflow::Status();
    }
    for (const tensorflow::Node* node : (*options.graph)->op_nodes()) {
      if (node->type_string() != "MxRecTable") continue;
      const tensorflow::AttrValue* token = node->attrs().Find(kTokenAttr);
      if (token == nullptr) continue;
      std::lock_guard<std::mutex> lock(Seen().mutex);
      Seen().tokens.insert(token->s());
    }
    return tensorflow::Status();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, 1000,
                      SessionWatchPass);

}  // namespace
}  // namespace mxrec_ops

extern "C" int mxrec_graph_was_run(const char* token) {
  std::lock_guard<std::mutex> lock(mxrec_ops::Seen().mutex);
  return mxrec_ops::Seen().tokens.count(token) != 0 ? 1 : 0;
}
