// Looks at what writes the variables of tables of fixed capacity.
//
// A save may let training go on if whoever writes a row of a table's variables
// has looked the row up in the same step: the lookup copies it first. The op
// that saves cannot see who does. Before a session runs a graph, TensorFlow
// hands the whole of it to the registered optimization passes; this one changes
// nothing. It follows the handles of the variables to their ops, and the
// indices of those that write rows back to the MxRecOffsets they come from.
#include "variable_writers.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/session_options.h"

namespace mxrec_ops {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

const std::set<std::string>& OpsThatDoNotWrite() {
  static const auto* const ops = new std::set<std::string>{
      "MxRecOffsets",     "MxRecReadySlots",    "MxRecTableRestore",
      "MxRecTableSave",   "ReadVariableOp",     "ResourceGather",
      "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"};
  return *ops;
}

const std::set<std::string>& OpsThatScatter() {
  static const auto* const ops = new std::set<std::string>{
      "ResourceScatterAdd",   "ResourceScatterDiv", "ResourceScatterMax",
      "ResourceScatterMin",   "ResourceScatterMul", "ResourceScatterSub",
      "ResourceScatterUpdate"};
  return *ops;
}

// Whose first output has values of their first input alone.
const std::set<std::string>& OpsThatKeepValues() {
  static const auto* const ops = new std::set<std::string>{
      "Cast",     "EnsureShape",     "ExpandDims",   "Gather",       "GatherNd",
      "GatherV2", "Identity",        "MxRecForward", "MxRecUnique",  "Reshape",
      "Slice",    "Squeeze",         "StopGradient", "StridedSlice", "Unique",
      "UniqueV2", "UniqueWithCounts"};
  return *ops;
}

const Edge* InputEdge(const Node* node, int index) {
  for (const Edge* const edge : node->in_edges()) {
    if (!edge->IsControlEdge() && edge->dst_input() == index) return edge;
  }
  return nullptr;
}

std::string StringAttr(const Node* node, const char* name) {
  const tensorflow::AttrValue* const value = node->attrs().Find(name);
  return value == nullptr ? std::string() : value->s();
}

int IntAttr(const Node* node, const char* name) {
  const tensorflow::AttrValue* const value = node->attrs().Find(name);
  return value == nullptr ? 0 : static_cast<int>(value->i());
}

// What a node of a handle says of whom it stands for; empty if it does not.
std::string NameOfHandle(const Node* node, int input, const char* op,
                         const char* attr) {
  const Edge* const edge = InputEdge(node, input);
  if (edge == nullptr || edge->src()->type_string() != op) return {};
  return StringAttr(edge->src(), attr);
}

std::string TableOf(const Node* node) {
  return NameOfHandle(node, 0, "MxRecTable", "table_name");
}

bool StartsWith(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

// One graph.
class WritersOfGraph {
 public:
  explicit WritersOfGraph(const Graph& graph) : graph_(graph) {}

  // A graph that is not whole tells of what it has alone.
  void Note(bool is_whole, const tensorflow::FunctionLibraryDefinition* library,
            VariableWriters::Session* session) {
    if (offsets_.empty() && tables_.empty()) FindVariables();
    if (library != nullptr) NoteFunctions(*library, session);
    for (const Node* const node : graph_.op_nodes()) {
      if (node->type_string() != "VarHandleOp") continue;
      const std::string name = StringAttr(node, "shared_name");
      if (tables_.count(name) == 0 && session->seen.count(name) == 0) continue;
      if (!FollowHandle(node, name)) session->others.insert(name);
    }
    session->trains.insert(trains_.begin(), trains_.end());
    if (!is_whole) return;
    session->seen.insert(saved_.begin(), saved_.end());
    for (const std::string& node : offsets_) {
      if (trains_.count(node) == 0) session->reads.insert(node);
    }
  }

  // The body of a function: what it does with a variable is not followed.
  static void NoteFunctionGraph(const Graph& graph,
                                VariableWriters::Session* session) {
    for (const Node* const node : graph.op_nodes()) {
      if (node->type_string() != "VarHandleOp") continue;
      const std::string name = StringAttr(node, "shared_name");
      if (session->seen.count(name) > 0) session->others.insert(name);
    }
  }

 private:
  void FindVariables() {
    for (const Node* const node : graph_.op_nodes()) {
      const std::string& op = node->type_string();
      if (!StartsWith(op, "MxRec")) continue;
      if (op == "MxRecOffsets") {
        rows_.insert(AddVariable(node, 1));
        offsets_.push_back(node->name());
      } else if (op == "MxRecTableSave") {
        const int variables = IntAttr(node, "V");
        for (int i = 0; i < variables; ++i) {
          const std::string name = AddVariable(node, 2 + i);
          if (!name.empty()) saved_.insert(name);
        }
      } else if (op == "MxRecReadySlots" || op == "MxRecResetSlots") {
        const int slots = IntAttr(node, op == "MxRecReadySlots" ? "V" : "N");
        for (int i = 0; i < slots; ++i) AddVariable(node, 1 + i);
      }
    }
  }

  std::string AddVariable(const Node* node, int input) {
    const std::string name =
        NameOfHandle(node, input, "VarHandleOp", "shared_name");
    if (!name.empty()) tables_[name].insert(TableOf(node));
    return name;
  }

  void NoteFunctions(const tensorflow::FunctionLibraryDefinition& library,
                     VariableWriters::Session* session) const {
    if (tables_.empty()) return;
    for (const std::string& function : library.ListFunctionNames()) {
      const auto* const definition = library.Find(function);
      if (definition == nullptr) continue;
      for (const auto& node : definition->node_def()) {
        if (node.op() != "VarHandleOp") continue;
        const auto attr = node.attr().find("shared_name");
        if (attr == node.attr().end()) continue;
        if (tables_.count(attr->second.s()) > 0) {
          session->others.insert(attr->second.s());
        }
      }
    }
  }

  // Whether all that `node`, which gives the handle of a variable, leads to is
  // known to leave rows alone that its step has not looked up.
  bool FollowHandle(const Node* node, const std::string& variable) {
    bool all = true;
    for (const Edge* const edge : node->out_edges()) {
      if (edge->IsControlEdge() || edge->dst()->IsSink()) continue;
      all &= Consumes(edge->dst(), variable);
    }
    return all;
  }

  bool Consumes(const Node* node, const std::string& variable) {
    const std::string& op = node->type_string();
    if (OpsThatDoNotWrite().count(op) > 0) return true;
    if (op == "Identity" || op == "Switch") {
      return FollowHandle(node, variable);
    }
    if (op == "AssignVariableOp") return Initializes(node, variable);
    if (op == "MxRecResetSlots") {
      return ComesFromLookups(InputEdge(node, IntAttr(node, "N") + 1),
                              variable);
    }
    if (OpsThatScatter().count(op) == 0 &&
        !StartsWith(op, "ResourceSparseApply")) {
      return false;
    }
    const tensorflow::OpDef& definition = node->op_def();
    for (int i = 0; i < definition.input_arg_size(); ++i) {
      if (definition.input_arg(i).name() == "indices") {
        return ComesFromLookups(InputEdge(node, i), variable);
      }
    }
    return false;
  }

  // The initializers of tables' variables, which nobody runs without need. An
  // assignment gives the variable another buffer, so a save is right in spite
  // of it; but it takes memory, and deltas do not know of it.
  bool Initializes(const Node* node, const std::string& variable) const {
    const Edge* value = InputEdge(node, 1);
    while (value != nullptr && (value->src()->type_string() == "Identity" ||
                                value->src()->type_string() == "Reshape")) {
      value = InputEdge(value->src(), 0);
    }
    if (value == nullptr) return false;
    if (value->src()->type_string() == "MxRecFreshRows") return true;
    if (rows_.count(variable) > 0) return false;
    // Of slots: what depends on constants alone.
    std::set<const Node*> seen;
    std::vector<const Node*> rest = {value->src()};
    while (!rest.empty()) {
      const Node* const next = rest.back();
      rest.pop_back();
      if (!seen.insert(next).second) continue;
      if (next->op_def().is_stateful() ||
          StartsWith(next->type_string(), "Placeholder")) {
        return false;
      }
      for (const Edge* const edge : next->in_edges()) {
        if (!edge->IsControlEdge()) rest.push_back(edge->src());
      }
    }
    return true;
  }

  // Whether values are offsets of rows that lookups of the variable's table
  // have found in the same step.
  bool ComesFromLookups(const Edge* edge, const std::string& variable) {
    std::set<std::pair<const Node*, int>> seen;
    std::vector<const Edge*> rest = {edge};
    while (!rest.empty()) {
      const Edge* const next = rest.back();
      rest.pop_back();
      if (next == nullptr) return false;
      const Node* const node = next->src();
      if (!seen.insert({node, next->src_output()}).second) continue;
      const std::string& op = node->type_string();
      if (op == "MxRecOffsets") {
        if (tables_[variable] != std::set<std::string>{TableOf(node)} ||
            TableOf(node).empty()) {
          return false;
        }
        trains_.insert(node->name());
      } else if (op == "ConcatV2") {
        const int n = IntAttr(node, "N");
        for (int i = 0; i < n; ++i) rest.push_back(InputEdge(node, i));
      } else if (op == "Merge" && next->src_output() == 0) {
        const int n = IntAttr(node, "N");
        for (int i = 0; i < n; ++i) rest.push_back(InputEdge(node, i));
      } else if (op == "Switch" || (OpsThatKeepValues().count(op) > 0 &&
                                    next->src_output() == 0)) {
        rest.push_back(InputEdge(node, 0));
      } else {
        return false;
      }
    }
    return true;
  }

  const Graph& graph_;
  std::map<std::string, std::set<std::string>> tables_;  // by variable
  std::set<std::string> rows_;        // variables that are looked up
  std::set<std::string> saved_;       // variables
  std::vector<std::string> offsets_;  // nodes
  std::set<std::string> trains_;      // of those
};

class VariableWritersPass : public tensorflow::GraphOptimizationPass {
 public:
  tensorflow::Status Run(
      const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) {
      return tensorflow::Status();
    }
    // Else it is what one run of the session needs.
    const bool is_whole =
        options.session_options != nullptr &&
        !options.session_options->config.graph_options().place_pruned_graph();
    WritersOfGraph graph(**options.graph);
    const auto note = [&](VariableWriters::Session* session) {
      if (options.is_function_graph) {
        WritersOfGraph::NoteFunctionGraph(**options.graph, session);
      } else {
        graph.Note(is_whole, options.flib_def, session);
      }
    };
    auto& writers = VariableWriters::Global();
    if (options.device_set == nullptr) {
      writers.ChangeAll(note);
    } else {
      for (const tensorflow::Device* device : options.device_set->devices()) {
        writers.Change(device->attributes().incarnation(), note);
      }
    }
    return tensorflow::Status();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, -999,
                      VariableWritersPass);

}  // namespace
}  // namespace mxrec_ops
