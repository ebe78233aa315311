// mxrec::Parallel over a few std::threads.
#ifndef MXREC_TESTS_THREAD_POOL_H_
#define MXREC_TESTS_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "mxrec/parallel.h"

namespace mxrec {
namespace testing {

// Several threads may call For at once; the caller works too.
class ThreadPool final : public Parallel {
 public:
  enum class Split {
    kByCost,  // no more threads than the cost is worth
    kAlways,  // many small uneven pieces, however little there is to do
  };

  explicit ThreadPool(int threads, Split split = Split::kByCost)
      : threads_(threads), split_(split) {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { Work(); });
    }
  }
  ~ThreadPool() override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const override { return threads_; }
  void For(int64_t total, int64_t cost_per_unit,
           const std::function<void(int64_t, int64_t)>& body) const override {
    if (total <= 0) return;
    const int64_t blocks = Blocks(total, cost_per_unit);
    if (blocks <= 1) {
      body(0, total);
      return;
    }
    auto job = std::make_shared<Job>();
    job->total = total;
    job->blocks = blocks;
    job->body = &body;
    const int helpers =
        static_cast<int>(std::min<int64_t>(blocks, threads_) - 1);
    {
      std::lock_guard<std::mutex> lock(mu_);
      for (int i = 0; i < helpers; ++i) jobs_.push_back(job);
    }
    if (helpers == 1) {
      wake_.notify_one();
    } else {
      wake_.notify_all();
    }
    job->Run();
    job->Wait();
  }

 private:
  struct Job {
    int64_t total = 0;
    int64_t blocks = 0;
    const std::function<void(int64_t, int64_t)>* body = nullptr;
    std::atomic<int64_t> next{0};
    std::mutex mu;
    std::condition_variable all_done;
    int64_t done = 0;  // guarded by mu

    // `body` is alive while a block is not done.
    void Run() {
      for (;;) {
        const int64_t block = next.fetch_add(1);
        if (block >= blocks) return;
        (*body)(total* block / blocks, total * (block + 1) / blocks);
        std::lock_guard<std::mutex> lock(mu);
        if (++done == blocks) all_done.notify_all();
      }
    }
    void Wait() {
      std::unique_lock<std::mutex> lock(mu);
      all_done.wait(lock, [this] { return done == blocks; });
    }
  };

  int64_t Blocks(int64_t total, int64_t cost_per_unit) const {
    if (split_ == Split::kAlways) {
      return std::min<int64_t>(total, threads_ * 2 + 1);
    }
    const int64_t worth =
        total * std::max<int64_t>(cost_per_unit, 1) / kCyclesPerBlock;
    return std::max<int64_t>(
        1, std::min({total, worth, static_cast<int64_t>(threads_)}));
  }

  void Work() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mu_);
        wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job->Run();
    }
  }

  static constexpr int64_t kCyclesPerBlock = 10000;

  const int threads_;
  const Split split_;
  mutable std::mutex mu_;  // guards jobs_ and stop_
  mutable std::condition_variable wake_;
  mutable std::deque<std::shared_ptr<Job>> jobs_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace testing
}  // namespace mxrec

#endif  // MXREC_TESTS_THREAD_POOL_H_
