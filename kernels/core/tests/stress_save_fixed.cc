// Saves and deltas of a table of fixed capacity while steps write its rows.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/saving.h"
#include "tests/fixed_rows.h"
#include "tests/stress.h"
#include "tests/table_utils.h"
#include "tests/temporary_directory.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDim = 8;
constexpr int64_t kCapacity = 24000;
constexpr int64_t kStable = 2000;  // keys that are in every step of one thread
constexpr int64_t kOthers = 8000;  // of each other thread that trains
constexpr int64_t kBatch = 500;

// All columns of a row and of its slot begin as 0 and get the same, so they are
// equal; stable rows are all written in one step, so they are equal too.
class FixedSavingStress {
 public:
  explicit FixedSavingStress(Clock::duration duration) : duration_(duration) {
    TableOptions options = Options("fixed", kDim);
    options.fixed_capacity = kCapacity;
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0;
    options.admission.access_threshold = 2;
    options.admission.record_times = true;
    table_ = MakeTable(options);
    rows_ = std::make_unique<FixedRows>(table_.get());
  }

  void Run() {
    See(KeyRange(0, kStable));
    Train(KeyRange(0, kStable));
    std::vector<std::thread> threads;
    threads.emplace_back(
        [this] { Repeat([this](Rng*) { Train(KeyRange(0, kStable)); }); });
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([this, i] {
        Repeat([this, i](Rng* rng) {
          Train(SomeKeys(rng, kStable + i * kOthers, kOthers));
        });
      });
    }
    threads.emplace_back([this] { Repeat([this](Rng* rng) { Look(rng); }); });
    threads.emplace_back([this] { Repeat([this](Rng*) { Evict(); }); });
    const auto end = Clock::now() + duration_;
    while (Clock::now() < end && Failures() == 0) SaveAndCheck();
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    // A last delta has all that the others may have missed.
    const SavedTable last = SaveAs(SaveKind::kDelta, true);
    for (const auto& [key, row] : Restored(last)) {
      const Address address = Find(*table_, {key})[0];
      EXPECT_TRUE(address != kNoRow);
      EXPECT_EQ(row.row[0], rows_->Row(RowOf(address))[0]);
    }
    EXPECT_EQ(last.manifest.size, table_->size());
    std::printf("%d saves of fixed capacity while in use, %d of them shared\n",
                saves_, shared_);
    EXPECT_LT(saves_ / 2, shared_);
  }

 private:
  void Repeat(const std::function<void(Rng*)>& body) {
    Rng rng(++seed_);
    while (!stop_ && Failures() == 0) body(&rng);
  }

  static std::vector<Key> SomeKeys(Rng* rng, Key first, int64_t n) {
    std::vector<Key> keys(kBatch);
    for (Key& key : keys) key = first + Below(rng, n);
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  }

  std::vector<Address> See(const std::vector<Key>& keys) {
    std::vector<Address> addresses(keys.size());
    const std::vector<int64_t> time = {now_++ / 50};
    Occurrences seen;
    seen.times = time;
    EXPECT_OK(table_->FindOrAdmit(keys, {}, seen, addresses, Serial()));
    return addresses;
  }

  void Train(const std::vector<Key>& keys) {
    const auto step = BeginStep(table_.get());
    const std::vector<Address> addresses = See(keys);
    const auto writes = BeginWrites(table_.get());
    rows_->Add(rows_->Offsets(addresses, writes.get()), 1);
  }

  // Evaluates: rows that were not read before get their initial values.
  void Look(Rng* rng) {
    const auto step = BeginStep(table_.get());
    rows_->Offsets(Find(*table_, SomeKeys(rng, 0, kStable + 2 * kOthers)),
                   nullptr);
  }

  void Evict() {
    Evicted evicted;
    EXPECT_OK(table_->Evict(20, &evicted));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  SavedTable SaveAs(SaveKind kind, bool complete) {
    SaveRequest request;
    request.prefix = directory_ / ("m-" + std::to_string(++saves_));
    request.kind = kind;
    rows_->ShareIn(&request);
    SavedTable saved;
    EXPECT_OK(table_->Save(request, &saved));
    // So that no other save takes the files for abandoned.
    std::fclose(std::fopen((request.prefix + ".index").c_str(), "w"));
    if (complete) table_->CommitSave(request.prefix);
    prefix_ = request.prefix;
    shared_ += saved.manifest.notes["rows_stood_still"] == "0" ? 1 : 0;
    return saved;
  }

  // In a table that grows.
  std::map<Key, ExportedRow> Restored(const SavedTable& saved) const {
    TableOptions options = table_->options();
    options.fixed_capacity = 0;
    const auto copy = MakeTable(options);
    RestoreRequest request;
    request.prefix = prefix_;
    request.saved = saved;
    RestoreReport report;
    EXPECT_OK(copy->Restore(request, &report));
    EXPECT_EQ(report.keys, saved.manifest.size);
    return Export(*copy);
  }

  void SaveAndCheck() {
    const int turn = saves_ % 12;
    const SaveKind kind = turn == 0   ? SaveKind::kBase
                          : turn == 5 ? SaveKind::kPlain
                                      : SaveKind::kDelta;
    const auto rows = Restored(SaveAs(kind, turn != 7));
    const auto first = rows.find(0);
    EXPECT_TRUE(first != rows.end());
    if (first == rows.end()) return;
    for (const auto& row : rows) {
      for (const float value : row.second.row) {
        EXPECT_EQ(value, row.second.row[0]);
      }
      if (row.first < kStable) {
        EXPECT_EQ(row.second.row[0], first->second.row[0]);
      }
    }
  }

  const Clock::duration duration_;
  const TemporaryDirectory directory_;
  std::shared_ptr<Table> table_;
  std::unique_ptr<FixedRows> rows_;
  std::atomic<int64_t> now_{0};
  std::atomic<int> seed_{0};
  std::atomic<bool> stop_{false};
  std::string prefix_;
  int saves_ = 0;
  int shared_ = 0;
};

}  // namespace

void StressSavingFixed(Clock::duration duration) {
  FixedSavingStress(duration).Run();
}

}  // namespace testing
}  // namespace mxrec
