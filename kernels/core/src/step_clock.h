// Which steps may still hold addresses of evicted rows.
#ifndef MXREC_SRC_STEP_CLOCK_H_
#define MXREC_SRC_STEP_CLOCK_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace mxrec {

// A step begins in an epoch; an eviction ends one. A row that was evicted in
// epoch e may be used again once no step that began in e or before is running:
// whoever began later did not find the key.
//
// Thread-safe.
class StepClock {
 public:
  StepClock() = default;
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  // To be given to End.
  uint64_t Begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++running_[epoch_];
    return epoch_;
  }
  // False, and nothing has begun, between Stop and Resume.
  bool BeginUnlessStopped(uint64_t* begun) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stops_ > 0) return false;
    *begun = epoch_;
    ++running_[epoch_];
    return true;
  }
  void End(uint64_t begun) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = running_.find(begun);
      if (--found->second == 0) running_.erase(found);
      UpdateOldest();
      if (!running_.empty() || stops_ == 0) return;
    }
    none_running_.notify_all();
  }
  // Waits until no step is running. False, and not stopped, if some still are
  // when the time is over.
  bool Stop(std::chrono::milliseconds wait) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++stops_;
    // Not wait_for: ThreadSanitizer does not know what that calls.
    const bool none =
        none_running_.wait_until(lock, std::chrono::system_clock::now() + wait,
                                 [this] { return running_.empty(); });
    if (!none) --stops_;
    return none;
  }
  void Resume() {
    std::lock_guard<std::mutex> lock(mutex_);
    --stops_;
  }
  // Ends the epoch of what has been evicted by now. Returns it.
  uint64_t Advance() {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t ended = epoch_++;
    UpdateOldest();
    return ended;
  }
  bool IsOver(uint64_t epoch) const {
    return epoch < oldest_.load(std::memory_order_acquire);
  }

  // A step of one operation.
  class Hold {
   public:
    // Null: nothing is held.
    explicit Hold(StepClock* clock)
        : clock_(clock), begun_(clock == nullptr ? 0 : clock->Begin()) {}
    ~Hold() {
      if (clock_ != nullptr) clock_->End(begun_);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    StepClock* const clock_;
    const uint64_t begun_;
  };

 private:
  // Releases what ended steps have done to rows to whoever uses them again.
  void UpdateOldest() {
    oldest_.store(running_.empty() ? epoch_ : running_.begin()->first,
                  std::memory_order_release);
  }

  std::mutex mutex_;
  std::condition_variable none_running_;
  int stops_ = 0;
  uint64_t epoch_ = 1;
  std::map<uint64_t, int64_t> running_;  // steps by the epoch they began in
  std::atomic<uint64_t> oldest_{1};      // of those, else epoch_
};

}  // namespace mxrec

#endif  // MXREC_SRC_STEP_CLOCK_H_
