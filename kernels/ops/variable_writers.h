// Which ops of a graph write the variables of tables of fixed capacity.
#ifndef MXREC_OPS_VARIABLE_WRITERS_H_
#define MXREC_OPS_VARIABLE_WRITERS_H_

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace mxrec_ops {

// What the graphs of this process, each looked at before a session runs it (see
// variable_writers.cc), say of variables, by the names of their handles, and of
// MxRecOffsets nodes. What one of them says against a variable stays: names are
// not bound to sessions.
//
// Thread-safe.
class VariableWriters {
 public:
  enum class Known {
    kNothing,       // never seen in a whole graph
    kLookedUpRows,  // written are rows that their step has looked up, alone
    kOthers         // or something else, or that cannot be told
  };

  static VariableWriters& Global() {
    static VariableWriters* const writers = new VariableWriters;
    return *writers;
  }
  // Of several variables the worst.
  Known Of(const std::vector<std::string>& variables) const {
    std::lock_guard<std::mutex> lock(mutex_);
    bool all_seen = true;
    for (const std::string& variable : variables) {
      if (others_.count(variable) > 0) return Known::kOthers;
      all_seen &= seen_.count(variable) > 0;
    }
    return all_seen ? Known::kLookedUpRows : Known::kNothing;
  }
  void SetSeen(const std::string& variable) {
    std::lock_guard<std::mutex> lock(mutex_);
    seen_.insert(variable);
  }
  void SetOthers(const std::string& variable) {
    std::lock_guard<std::mutex> lock(mutex_);
    others_.insert(variable);
  }
  bool IsSeen(const std::string& variable) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return seen_.count(variable) > 0;
  }
  // Whether a node's offsets lead to no writer.
  bool OnlyReads(const std::string& node) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return reads_.count(node) > 0 && trains_.count(node) == 0;
  }
  void SetReads(const std::string& node) {
    std::lock_guard<std::mutex> lock(mutex_);
    reads_.insert(node);
  }
  void SetTrains(const std::string& node) {
    std::lock_guard<std::mutex> lock(mutex_);
    trains_.insert(node);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::string> seen_;
  std::unordered_set<std::string> others_;
  std::unordered_set<std::string> reads_;
  std::unordered_set<std::string> trains_;
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_VARIABLE_WRITERS_H_
