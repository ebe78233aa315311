// What the next save to a prefix is for. A Saver hands its ops the prefix and
// nothing else, so the rest waits here.
#ifndef MXREC_OPS_SAVE_REQUESTS_H_
#define MXREC_OPS_SAVE_REQUESTS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "mxrec/saving.h"

namespace mxrec_ops {

// Thread-safe.
class SaveRequests {
 public:
  struct Wish {
    mxrec::SaveKind kind = mxrec::SaveKind::kPlain;
    int64_t least_count = 0;
  };
  static SaveRequests& Global() {
    static SaveRequests* const requests = new SaveRequests;
    return *requests;
  }
  void Set(const std::string& prefix, Wish wish) {
    std::lock_guard<std::mutex> lock(mutex_);
    wishes_[prefix] = wish;
  }
  void Clear(const std::string& prefix) {
    std::lock_guard<std::mutex> lock(mutex_);
    wishes_.erase(prefix);
  }
  Wish Of(const std::string& prefix) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto wish = wishes_.find(prefix);
    return wish == wishes_.end() ? Wish{} : wish->second;
  }
  void SetLastPrefix(const std::string& prefix) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_prefix_ = prefix;
  }
  std::string LastPrefix() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_prefix_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Wish> wishes_;
  std::string last_prefix_;
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_SAVE_REQUESTS_H_
