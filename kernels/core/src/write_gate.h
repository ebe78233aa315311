// Which steps may write rows that are kept elsewhere.
#ifndef MXREC_SRC_WRITE_GATE_H_
#define MXREC_SRC_WRITE_GATE_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/span.h"

namespace mxrec {

// The rows that a step may have written since it has begun to.
//
// Thread-safe.
class RowWrites {
 public:
  void Add(Span<const int64_t> offsets) {
    std::lock_guard<std::mutex> lock(mutex_);
    offsets_.insert(offsets_.end(), offsets.begin(), offsets.end());
    if (static_cast<int64_t>(offsets_.size()) < next_look_) return;
    // Of a step that does not end (TensorFlow's eager ones), each once.
    std::sort(offsets_.begin(), offsets_.end());
    offsets_.erase(std::unique(offsets_.begin(), offsets_.end()),
                   offsets_.end());
    next_look_ = std::max<int64_t>(2 * static_cast<int64_t>(offsets_.size()),
                                   kFirstLook);
  }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const int64_t offset : offsets_) {
      if (offset >= 0) visit(static_cast<RowIndex>(offset));
    }
  }

 private:
  static constexpr int64_t kFirstLook = 1 << 20;

  mutable std::mutex mutex_;
  std::vector<int64_t> offsets_;
  int64_t next_look_ = kFirstLook;
};

// Who writes is inside. For a moment a save closes the gate and has nobody
// inside: what is written before that moment is saved, and nothing else.
//
// Thread-safe; one at a time may close it.
class WriteGate : public std::enable_shared_from_this<WriteGate> {
 public:
  // Inside until it is dropped; null if the gate is closed.
  std::shared_ptr<RowWrites> Enter() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return nullptr;
    auto* const writes = new RowWrites;
    inside_.insert(writes);
    // Steps may outlive the table.
    return {writes, [gate = shared_from_this()](RowWrites* left) {
              gate->Leave(left);
            }};
  }
  // Calls `opened` when the gate opens, from any thread; false if it is open.
  bool WaitUntilOpen(std::function<void()> opened) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) waiting_.push_back(std::move(opened));
    return is_closed_;
  }
  // Waits until nobody is inside. False, and not closed, if somebody still is
  // when the time is over.
  bool Close(std::chrono::milliseconds wait) {
    std::unique_lock<std::mutex> lock(mutex_);
    is_closed_ = true;
    // Not wait_for: ThreadSanitizer does not know what that calls.
    const bool none =
        none_inside_.wait_until(lock, std::chrono::system_clock::now() + wait,
                                [this] { return inside_.empty(); });
    if (!none) OpenLocked(&lock);
    return none;
  }
  void Open() {
    std::unique_lock<std::mutex> lock(mutex_);
    OpenLocked(&lock);
  }
  template <typename Visit>
  void ForEachInside(const Visit& visit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const RowWrites* const writes : inside_) visit(*writes);
  }

 private:
  void Leave(RowWrites* writes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      inside_.erase(writes);
      if (is_closed_ && inside_.empty()) none_inside_.notify_all();
    }
    delete writes;
  }
  void OpenLocked(std::unique_lock<std::mutex>* lock) {
    is_closed_ = false;
    const auto waiting = std::exchange(waiting_, {});
    lock->unlock();
    for (const auto& opened : waiting) opened();
  }

  mutable std::mutex mutex_;
  std::condition_variable none_inside_;
  bool is_closed_ = false;
  std::unordered_set<RowWrites*> inside_;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace mxrec

#endif  // MXREC_SRC_WRITE_GATE_H_
