// stress_table [seconds]: every operation of a table at once from several
// threads, checked while they run and at the end. Meant for the thread and
// address sanitizers.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
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
constexpr Key kUniverse = 60000;
constexpr float kInitial = 0.5f;
constexpr int64_t kPadding = 5;  // index of a key whose row never changes

// Keys come in increasing windows, so that new ones keep coming; spread over
// the int64s, so that they meet in no order.
Key KeyOf(int64_t i) {
  return static_cast<Key>(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull);
}

// Runs the threads on one table and holds what they must agree on.
class Stress {
 public:
  Stress(Clock::duration duration, bool use_ftrl)
      : duration_(duration),
        use_ftrl_(use_ftrl),
        start_(Clock::now()),
        pool_(2) {
    TableOptions options = Options("stress", kDim);
    options.initializer = {};
    options.initializer.a = kInitial;
    options.padding_keys = {KeyOf(kPadding)};
    table_ = MakeTable(options);
    for (auto& address : first_address_) address = kNoRow;
    for (auto& count : inserted_) count = 0;
  }

  void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) Start(&threads, &Stress::Train, i);
    Start(&threads, &Stress::Look, 0);
    Start(&threads, &Stress::Evaluate, 0);
    Start(&threads, &Stress::Evaluate, 1);
    Start(&threads, &Stress::Update, 0);
    Start(&threads, &Stress::Snapshot, 0);
    Start(&threads, &Stress::Watch, 0);
    for (auto& thread : threads) thread.join();
    CheckEnd();
  }

 private:
  void Start(std::vector<std::thread>* threads, void (Stress::*role)(Rng*),
             int number) {
    threads->emplace_back([this, role, number, seed = threads->size()] {
      Rng rng(seed * 1000 + number);
      while (Clock::now() - start_ < duration_ && Failures() == 0) {
        (this->*role)(&rng);
      }
    });
  }

  const Parallel& AnyParallel(Rng* rng) {
    if (Below(rng, 2) == 0) return Serial();
    return pool_;
  }

  // Indices of the keys of a batch. The window moves with time.
  std::vector<int64_t> Batch(Rng* rng) {
    const double passed = std::chrono::duration<double>(Clock::now() - start_) /
                          std::chrono::duration<double>(duration_);
    const int64_t window = std::min<int64_t>(
        kUniverse, 100 + static_cast<int64_t>(passed * kUniverse));
    std::vector<int64_t> batch(Below(rng, 8) == 0 ? 2500 + Below(rng, 1000)
                                                  : Below(rng, 300));
    for (int64_t& i : batch) i = Below(rng, window);
    return batch;
  }

  static std::vector<Key> Keys(const std::vector<int64_t>& batch) {
    std::vector<Key> keys(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) keys[i] = KeyOf(batch[i]);
    return keys;
  }

  // The first address anybody saw for a key is the only one.
  void CheckAddress(int64_t key_index, Address address) {
    Address expected = kNoRow;
    if (!first_address_[key_index].compare_exchange_strong(expected, address)) {
      EXPECT_EQ(address, expected);
    }
  }

  void CheckRows(const std::vector<float>& rows) {
    for (size_t i = 0; i < rows.size(); i += kDim) {
      for (int c = 1; c < kDim; ++c) EXPECT_EQ(rows[i + c], rows[i]);
    }
  }

  std::vector<Address> Hints(Rng* rng, const std::vector<int64_t>& batch) {
    if (Below(rng, 3) == 0) return {};
    std::vector<Address> hints(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      switch (Below(rng, 8)) {
        default:
          hints[i] = first_address_[batch[i]];
          break;
        case 0:
          hints[i] = first_address_[Below(rng, kUniverse)];
          break;
        case 1:
          hints[i] = static_cast<Address>((*rng)());
          break;
        case 2:  // rows that are being made
          hints[i] = first_address_[0] + Below(rng, table_->capacity() + 1);
          break;
      }
    }
    return hints;
  }

  // Keys 2i and 2i + 1 always come together and equally often, so that a
  // snapshot of one instant has both or neither.
  void Train(Rng* rng) {
    std::vector<int64_t> batch;
    for (int64_t i : Batch(rng)) {
      batch.push_back(i);
      batch.push_back(i ^ 1);
    }
    const auto keys = Keys(batch);
    std::vector<int32_t> counts;
    if (Below(rng, 2) == 0) {
      for (size_t i = 0; i < batch.size(); i += 2) {
        counts.push_back(static_cast<int32_t>(Below(rng, 4)));
        counts.push_back(counts.back());
      }
    }
    // Before the call, so that a reader never sees more than was asked for.
    for (size_t i = 0; i < batch.size(); ++i) {
      inserted_[batch[i]] += counts.empty() ? 1 : counts[i];
    }
    std::vector<Address> addresses(batch.size(), -1);
    EXPECT_OK(table_->FindOrInsert(keys, Hints(rng, batch), counts, addresses,
                                   AnyParallel(rng)));
    for (size_t i = 0; i < batch.size(); ++i) {
      CheckAddress(batch[i], addresses[i]);
      visible_[batch[i]] = true;
    }
    CheckRows(Gather(*table_, addresses, nullptr, AnyParallel(rng)));
    const auto found = Find(*table_, keys, AnyParallel(rng));
    EXPECT_TRUE(found == addresses);
    ApplyTo(rng, addresses);
  }

  void ApplyTo(Rng* rng, const std::vector<Address>& addresses) {
    std::vector<float> gradients(addresses.size() * kDim);
    for (size_t i = 0; i < addresses.size(); ++i) {
      const float g = UniformFloat(rng, -1, 1);
      std::fill_n(gradients.begin() + i * kDim, kDim, g);
    }
    ++updates_;
    if (Below(rng, 2) == 0) {
      EXPECT_OK(table_->ApplySgd(addresses, gradients.data(),
                                 SgdParams{0.1f, 0.01f}, AnyParallel(rng)));
    } else if (use_ftrl_) {
      EXPECT_OK(table_->ApplyFtrl(addresses, gradients.data(), {0.1f},
                                  AnyParallel(rng)));
    } else {
      EXPECT_OK(table_->ApplyLazyAdam(addresses, gradients.data(), {},
                                      AnyParallel(rng)));
    }
  }

  void Look(Rng* rng) {
    const auto batch = Batch(rng);
    const bool reserve = Below(rng, 2) == 0;
    std::vector<Address> hints(batch.size(), -1);
    EXPECT_OK(table_->LookAhead(Keys(batch), reserve, hints, AnyParallel(rng)));
    for (size_t i = 0; i < batch.size(); ++i) {
      if (reserve) EXPECT_LT(0, hints[i]);
      if (hints[i] != kNoRow) CheckAddress(batch[i], hints[i]);
    }
  }

  void Evaluate(Rng* rng) {
    const auto batch = Batch(rng);
    std::vector<char> must_be_there(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      must_be_there[i] = visible_[batch[i]];
    }
    std::vector<Address> addresses(batch.size(), -1);
    EXPECT_OK(table_->Find(Keys(batch), Hints(rng, batch), addresses,
                           AnyParallel(rng)));
    for (size_t i = 0; i < batch.size(); ++i) {
      if (addresses[i] != kNoRow) {
        CheckAddress(batch[i], addresses[i]);
      } else {
        EXPECT_FALSE(must_be_there[i]);
      }
    }
    const std::vector<float> missing(kDim, -3.0f);
    const auto rows =
        Gather(*table_, addresses, missing.data(), AnyParallel(rng));
    CheckRows(rows);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (addresses[i] == kNoRow) EXPECT_EQ(rows[i * kDim], -3.0f);
    }
  }

  void Update(Rng* rng) {
    std::vector<Address> addresses;
    for (int64_t i : Batch(rng)) {
      addresses.push_back(visible_[i] ? first_address_[i].load() : kNoRow);
    }
    ApplyTo(rng, addresses);
    // Illegal ones among them change nothing (or rows would be torn).
    addresses.push_back(-1);
    std::vector<float> gradients(addresses.size() * kDim);
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = 1.0f * i;
    EXPECT_ERROR(table_->ApplySgd(addresses, gradients.data(), SgdParams{1, 0},
                                  AnyParallel(rng)),
                 Code::kInvalidArgument, "stress");
  }

  void Snapshot(Rng* rng) {
    const int64_t size_before = table_->size();
    int64_t exported = 0;
    std::vector<int64_t> count_of(kUniverse, -1);
    EXPECT_OK(
        table_->Export(1 + Below(rng, 5000), [&](const ExportChunk& chunk) {
          const int64_t stride = chunk.rows.size() / chunk.keys.size();
          EXPECT_TRUE(stride == kDim || stride == 3 * kDim);
          for (int64_t i = 0; i < chunk.keys.size(); ++i) {
            const int64_t index = IndexOf(chunk.keys[i]);
            EXPECT_EQ(count_of[index], -1);
            count_of[index] = chunk.counts[i];
            EXPECT_LE(chunk.counts[i], inserted_[index].load());
            for (int64_t part = 0; part < stride; part += kDim) {
              const float* row = chunk.rows.data() + i * stride + part;
              for (int c = 1; c < kDim; ++c) EXPECT_EQ(row[c], row[0]);
            }
          }
          exported += chunk.keys.size();
          return Status::Ok();
        }));
    for (Key i = 0; i < kUniverse; i += 2) {
      EXPECT_EQ(count_of[i], count_of[i + 1]);
    }
    EXPECT_LE(size_before, exported);
    EXPECT_LE(exported, table_->size());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  void Watch(Rng*) {
    const int64_t size = table_->size();
    EXPECT_LE(last_size_, size);
    last_size_ = size;
    EXPECT_LE(size, table_->capacity());
    EXPECT_LE(table_->update_count(), updates_.load());
    const MemoryUsage memory = table_->memory();
    EXPECT_LE(size * kDim * 4, memory.row_bytes);
    EXPECT_TRUE(table_->stride() == kDim || table_->stride() == 3 * kDim);
    EXPECT_FALSE(table_->released());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void CheckEnd() {
    int64_t visible = 0;
    for (const auto& v : visible_) visible += v;
    EXPECT_EQ(table_->size(), visible);
    EXPECT_EQ(table_->update_count(), updates_.load());
    const auto exported = Export(*table_);
    EXPECT_EQ(exported.size(), visible);
    for (const auto& [key, row] : exported) {
      EXPECT_EQ(row.count, inserted_[IndexOf(key)].load());
    }
    // On a busy machine it may never have come.
    const auto padding = exported.find(KeyOf(kPadding));
    if (padding != exported.end()) {
      EXPECT_EQ(padding->second.row[0], kInitial);
    }
    std::printf("%lld keys, %lld updates\n", static_cast<long long>(visible),
                static_cast<long long>(updates_.load()));
  }

  static int64_t IndexOf(Key key) {
    static const auto* const indices = [] {
      auto* map = new std::unordered_map<Key, int64_t>;
      for (int64_t i = 0; i < kUniverse; ++i) map->emplace(KeyOf(i), i);
      return map;
    }();
    return indices->at(key);
  }

  const Clock::duration duration_;
  const bool use_ftrl_;
  const Clock::time_point start_;
  const ThreadPool pool_;
  std::shared_ptr<Table> table_;
  std::vector<std::atomic<Address>> first_address_ =
      std::vector<std::atomic<Address>>(kUniverse);
  std::vector<std::atomic<int64_t>> inserted_ =
      std::vector<std::atomic<int64_t>>(kUniverse);
  std::vector<std::atomic<bool>> visible_ =
      std::vector<std::atomic<bool>>(kUniverse);
  std::atomic<int64_t> updates_{0};
  int64_t last_size_ = 0;  // of Watch
};

// Every call either works or says that the table is gone.
void ReleaseWhileInUse() {
  const auto table = MakeTable(Options("short_lived", kDim));
  Registry::Global().Register(table);
  std::atomic<bool> released{false};
  const auto check = [&](const Status& status) {
    if (status.ok()) return true;
    EXPECT_ERROR(status, Code::kFailedPrecondition, "short_lived");
    EXPECT_TRUE(table->released());
    return false;
  };
  const std::function<bool(Rng*)> roles[] = {
      [&](Rng* rng) {
        std::vector<Key> keys(3000);
        for (Key& key : keys) key = Below(rng, 100000);
        std::vector<Address> addresses(keys.size());
        if (!check(table->FindOrInsert(keys, {}, {}, addresses, Serial()))) {
          return false;
        }
        std::vector<float> rows(keys.size() * kDim);
        return check(
                   table->Gather(addresses, nullptr, rows.data(), Serial())) &&
               check(
                   table->ApplyLazyAdam(addresses, rows.data(), {}, Serial()));
      },
      [&](Rng* rng) {
        std::vector<Key> keys(Below(rng, 5000));
        for (Key& key : keys) key = Below(rng, 100000);
        std::vector<Address> addresses(keys.size());
        if (!check(table->LookAhead(keys, true, addresses, Serial()))) {
          return false;
        }
        return check(table->Find(keys, addresses, addresses, Serial()));
      },
      [&](Rng*) {
        return check(table->Export(
            100, [](const ExportChunk&) { return Status::Ok(); }));
      },
      [&](Rng*) {
        table->size();
        table->capacity();
        table->stride();
        table->update_count();
        table->memory();
        return !table->released();
      },
  };
  std::vector<std::thread> threads;
  for (const auto& role : roles) {
    threads.emplace_back([&, seed = threads.size()] {
      Rng rng(seed);
      while (role(&rng)) {
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  Registry::Global().ReleaseAll();
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(table->released());
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const auto share = [seconds](double part) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(seconds * part));
  };
  // Two tables one after the other: the second one's life begins in the
  // process's middle age.
  for (int round = 0; round < 2; ++round) {
    Stress(share(0.2), round == 1).Run();
  }
  StressEviction(share(0.25));
  StressSaving(share(0.15));
  StressSavingFixed(share(0.15));
  const auto start = Clock::now();
  int releases = 0;
  while (Clock::now() - start < share(0.1) && Failures() == 0) {
    ReleaseWhileInUse();
    ++releases;
  }
  std::printf("%d releases while in use\n", releases);
  std::printf("%s\n", Failures() == 0 ? "passed" : "FAILED");
  return Failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace testing
}  // namespace mxrec

int main(int argc, char** argv) { return mxrec::testing::Main(argc, argv); }
