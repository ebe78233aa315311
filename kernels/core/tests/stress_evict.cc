#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/table.h"
#include "tests/stress.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDim = 6;
constexpr int64_t kUniverse = 40000;
constexpr int64_t kBatch = 400;
constexpr int kTrainers = 3;
constexpr int64_t kMaxKeys = 6000;

// Column 0 of a row never gets a gradient, so it tells whose row it is.
class EvictionStress {
 public:
  EvictionStress(Clock::duration duration, int64_t capacity, int64_t max_keys)
      : duration_(duration), start_(Clock::now()), pool_(2) {
    TableOptions options = Options("evicting", kDim);
    options.fixed_capacity = capacity;
    options.admission.access_threshold = 2;
    options.admission.max_keys = max_keys;
    options.admission.record_times = true;
    table_ = MakeTable(options);
    table_->LogErasedKeys(true);
    for (Key key = 0; key < kUniverse; ++key) {
      mark_of_[key] = InitialRow(*table_, key)[0];
    }
    if (capacity > 0) {
      rows_.resize(capacity * kDim);
      slots_.resize(capacity);
    }
  }

  void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < kTrainers; ++i) {
      Start(&threads, &EvictionStress::Train);
    }
    Start(&threads, &EvictionStress::Evaluate);
    Start(&threads, &EvictionStress::Evict);
    Start(&threads, &EvictionStress::Evict);
    Start(&threads, &EvictionStress::Look);
    Start(&threads, &EvictionStress::Watch);
    if (!is_fixed()) Start(&threads, &EvictionStress::KeepTooLong);
    for (auto& thread : threads) thread.join();
    CheckEnd();
  }

 private:
  bool is_fixed() const { return table_->options().fixed_capacity > 0; }

  void Start(std::vector<std::thread>* threads,
             void (EvictionStress::*role)(Rng*)) {
    threads->emplace_back([this, role, seed = threads->size()] {
      Rng rng(seed);
      while (Clock::now() - start_ < duration_ && Failures() == 0) {
        (this->*role)(&rng);
      }
    });
  }

  const Parallel& AnyParallel(Rng* rng) {
    if (Below(rng, 2) == 0) return Serial();
    return pool_;
  }

  // Distinct keys of a window that moves on, and some of all.
  std::vector<Key> Batch(Rng* rng) {
    const int64_t window = (now_ * 3) % kUniverse;
    std::set<Key> keys;
    for (int64_t i = Below(rng, kBatch); i > 0; --i) {
      keys.insert(Below(rng, 4) == 0 ? Below(rng, kUniverse)
                                     : (window + Below(rng, 2000)) % kUniverse);
    }
    return {keys.begin(), keys.end()};
  }

  std::vector<Address> Hints(Rng* rng, const std::vector<Key>& keys) {
    if (Below(rng, 3) == 0) return {};
    std::vector<Address> hints;
    for (const Key key : keys) {
      hints.push_back(
          last_address_[Below(rng, 20) == 0 ? Below(rng, kUniverse) : key]);
    }
    return hints;
  }

  // Rows at addresses that this step was given.
  void CheckRows(Rng* rng, const std::vector<Key>& keys,
                 const std::vector<Address>& addresses) {
    if (is_fixed()) return CheckFixedRows(keys, addresses);
    const std::vector<float> missing(kDim, -3.0f);
    const auto rows =
        Gather(*table_, addresses, missing.data(), AnyParallel(rng));
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(rows[i * kDim],
                addresses[i] == kNoRow ? -3.0f : mark_of_[keys[i]]);
    }
  }

  // As MxRecOffsets and those that read its variable.
  void CheckFixedRows(const std::vector<Key>& keys,
                      const std::vector<Address>& addresses) {
    std::vector<int64_t> offsets(addresses.size());
    bool all_initialized = false;
    EXPECT_OK(table_->Offsets(addresses, offsets, &all_initialized));
    std::lock_guard<std::mutex> lock(rows_mutex_);
    EXPECT_OK(
        table_->InitializeRows(offsets, [&](int64_t offset, const float* row) {
          std::copy_n(row, kDim, rows_.data() + offset * kDim);
        }));
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(addresses[i] == kNoRow, offsets[i] == -1);
      if (offsets[i] >= 0) {
        EXPECT_EQ(rows_[offsets[i] * kDim], mark_of_[keys[i]]);
      }
    }
  }

  // As an optimizer with a slot: it begins with 0 for every key.
  void UpdateSlots(const std::vector<Key>& keys,
                   const std::vector<Address>& addresses) {
    std::vector<int64_t> offsets(addresses.size());
    bool all_initialized = false;
    EXPECT_OK(table_->Offsets(addresses, offsets, &all_initialized));
    std::lock_guard<std::mutex> lock(rows_mutex_);
    EXPECT_OK(table_->ResetSlots(offsets,
                                 [&](int64_t offset) { slots_[offset] = 0; }));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (offsets[i] < 0) continue;
      Key& slot = slots_[offsets[i]];
      EXPECT_TRUE(slot == 0 || slot == keys[i] + 1);
      slot = keys[i] + 1;
    }
  }

  void Train(Rng* rng) {
    auto step = BeginStep(table_.get());
    const auto keys = Batch(rng);
    std::vector<int64_t> times(
        Below(rng, 2) == 0 ? 1 : static_cast<int64_t>(keys.size()));
    for (int64_t& time : times)
      time = std::max<int64_t>(0, now_ - Below(rng, 5));
    Occurrences seen;
    if (!times.empty() && Below(rng, 5) != 0) seen.times = times;
    seen.coefficient = 1 + Below(rng, 2);
    std::vector<Address> addresses(keys.size(), -1);
    const Status status = table_->FindOrAdmit(keys, Hints(rng, keys), seen,
                                              addresses, AnyParallel(rng));
    if (!status.ok()) {
      // Rows of evicted keys may still be held by steps.
      EXPECT_TRUE(is_fixed() && status.code() == Code::kResourceExhausted);
      ++refused_;
      return;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      last_address_[keys[i]] = addresses[i];
    }
    CheckRows(rng, keys, addresses);
    if (Below(rng, 4) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(Below(rng, 3000)));
    }
    if (is_fixed()) {
      UpdateSlots(keys, addresses);
    } else {
      std::vector<float> gradients(keys.size() * kDim);
      for (size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] = i % kDim == 0 ? 0.0f : UniformFloat(rng, -1, 1);
      }
      EXPECT_OK(table_->ApplyLazyAdam(addresses, gradients.data(), {},
                                      AnyParallel(rng)));
    }
    CheckRows(rng, keys, addresses);
    ++now_;
    ++steps_;
  }

  void Evaluate(Rng* rng) {
    auto step = BeginStep(table_.get());
    const auto keys = Batch(rng);
    std::vector<Address> addresses(keys.size(), -1);
    EXPECT_OK(
        table_->Find(keys, Hints(rng, keys), addresses, AnyParallel(rng)));
    CheckRows(rng, keys, addresses);
    std::this_thread::yield();
    CheckRows(rng, keys, addresses);
  }

  void Evict(Rng* rng) {
    Evicted evicted;
    EXPECT_OK(table_->Evict(Below(rng, 300), &evicted));
    evictions_ += evicted.keys;
    int64_t in_force = 0;
    if (Below(rng, 10) == 0) {
      EXPECT_OK(table_->SetAccessThreshold(Below(rng, 4), &in_force));
      EXPECT_LT(0, in_force);
    }
  }

  void Look(Rng* rng) {
    const auto keys = Batch(rng);
    std::vector<Address> hints(keys.size(), -1);
    EXPECT_OK(table_->LookAhead(keys, true, hints, AnyParallel(rng)));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (hints[i] != kNoRow) last_address_[keys[i]] = hints[i];
    }
  }

  // Addresses of steps that have ended lead to the row of their key or nowhere.
  void KeepTooLong(Rng* rng) {
    const Key key = Below(rng, kUniverse);
    const Address address = last_address_[key];
    if (address == kNoRow) return;
    std::vector<float> row(kDim);
    const Status status = table_->Gather(std::vector<Address>{address}, nullptr,
                                         row.data(), Serial());
    if (status.ok()) {
      EXPECT_EQ(row[0], mark_of_[key]);
    } else {
      EXPECT_TRUE(status.message().find("evicted") != std::string::npos);
    }
  }

  void Watch(Rng* rng) {
    std::vector<Key> erased;
    table_->TakeErasedKeys(&erased);
    for (const Key key : erased) EXPECT_TRUE(key >= 0 && key < kUniverse);
    erased_ += static_cast<int64_t>(erased.size());
    EXPECT_OK(table_->Export(1 + Below(rng, 3000), [&](const ExportChunk& c) {
      const int64_t stride = c.rows.size() / c.keys.size();
      for (int64_t i = 0; i < c.keys.size(); ++i) {
        if (stride > 0) {
          EXPECT_EQ(c.rows[i * stride], mark_of_[c.keys[i]]);
        }
        EXPECT_LE(c.times[i], now_.load());
      }
      return Status::Ok();
    }));
    const EvictionStats stats = table_->eviction_stats();
    const int64_t bound = table_->options().admission.max_keys;
    if (bound > 0) {
      // Who makes room may be kept from it while the others go on.
      EXPECT_LE(table_->size(), bound + 4 * kTrainers * kBatch);
      EXPECT_LE(stats.candidates, bound + 256 * 17);
    }
    most_rows_ = std::max(
        most_rows_, table_->memory().row_bytes / (table_->stride() * 4 + 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  void CheckEnd() {
    std::vector<Key> erased;
    table_->TakeErasedKeys(&erased);
    erased_ += static_cast<int64_t>(erased.size());
    EXPECT_EQ(erased_, table_->eviction_stats().evicted_keys);
    const auto rows = Export(*table_);
    EXPECT_EQ(rows.size(), table_->size());
    // Keys, what shards have in stock, and what steps hold: they are long
    // beside an eviction here.
    if (table_->options().admission.max_keys > 0) {
      EXPECT_LE(most_rows_, 3 * kMaxKeys);
    }
    EXPECT_OK(table_->ExportCandidates(1000, [&](const CandidateChunk& chunk) {
      for (const Key key : chunk.keys) EXPECT_EQ(rows.count(key), 0);
      return Status::Ok();
    }));
    std::printf("%lld steps (%lld refused), %lld evicted, %lld rows\n",
                static_cast<long long>(steps_.load()),
                static_cast<long long>(refused_.load()),
                static_cast<long long>(evictions_.load()),
                static_cast<long long>(most_rows_));
  }

  const Clock::duration duration_;
  const Clock::time_point start_;
  const ThreadPool pool_;
  std::shared_ptr<Table> table_;
  std::vector<float> mark_of_ = std::vector<float>(kUniverse);
  std::vector<std::atomic<Address>> last_address_ =
      std::vector<std::atomic<Address>>(kUniverse);
  std::mutex rows_mutex_;
  std::vector<float> rows_;  // of a table of fixed capacity; by rows_mutex_
  std::vector<Key> slots_;   // the same
  std::atomic<int64_t> now_{1000};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> refused_{0};
  std::atomic<int64_t> evictions_{0};
  int64_t erased_ = 0;     // of Watch
  int64_t most_rows_ = 0;  // of Watch
};

}  // namespace

void StressEviction(Clock::duration duration) {
  EvictionStress(duration / 3, 0, 0).Run();
  EvictionStress(duration / 3, 0, kMaxKeys).Run();
  EvictionStress(duration / 3, 3 * kMaxKeys, kMaxKeys).Run();
}

}  // namespace testing
}  // namespace mxrec
