// Which ops of a graph write the variables of tables of fixed capacity.
#ifndef MXREC_OPS_VARIABLE_WRITERS_H_
#define MXREC_OPS_VARIABLE_WRITERS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace mxrec_ops {

// What the graphs of a session, each looked at before it runs (see
// variable_writers.cc), say of variables, by the names of their handles, and of
// MxRecOffsets nodes. What one of them says against a variable stays. A session
// is known by the incarnation of any of its devices.
//
// Thread-safe.
class VariableWriters {
 public:
  enum class Known {
    kNothing,       // never seen in a whole graph
    kLookedUpRows,  // written are rows that their step has looked up, alone
    kOthers         // or something else, or that cannot be told
  };
  using Names = std::unordered_set<std::string>;
  struct Session {
    Names seen;    // variables of tables that are saved
    Names others;  // variables that may be written in another way
    Names reads;   // nodes whose offsets lead to no writer
    Names trains;  // and those that do, in some graph
  };

  static VariableWriters& Global() {
    static VariableWriters* const writers = new VariableWriters;
    return *writers;
  }
  // Of several variables the worst.
  Known Of(uint64_t incarnation,
           const std::vector<std::string>& variables) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto session = sessions_.find(incarnation);
    if (session == sessions_.end()) return Known::kNothing;
    bool all_seen = true;
    for (const std::string& variable : variables) {
      if (session->second.others.count(variable) > 0) return Known::kOthers;
      all_seen &= session->second.seen.count(variable) > 0;
    }
    return all_seen ? Known::kLookedUpRows : Known::kNothing;
  }
  bool OnlyReads(uint64_t incarnation, const std::string& node) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto session = sessions_.find(incarnation);
    return session != sessions_.end() &&
           session->second.reads.count(node) > 0 &&
           session->second.trains.count(node) == 0;
  }
  void SetOthers(uint64_t incarnation, const std::string& variable) {
    std::lock_guard<std::mutex> lock(mutex_);
    sessions_[incarnation].others.insert(variable);
  }
  // Calls note(session) for one, or for all that there are.
  template <typename Note>
  void Change(uint64_t incarnation, const Note& note) {
    std::lock_guard<std::mutex> lock(mutex_);
    note(&sessions_[incarnation]);
  }
  template <typename Note>
  void ChangeAll(const Note& note) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& session : sessions_) note(&session.second);
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Session> sessions_;
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_VARIABLE_WRITERS_H_
