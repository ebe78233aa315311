// Saves, deltas and exports while a table is trained and evicts.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mxrec/saving.h"
#include "tests/stress.h"
#include "tests/table_utils.h"
#include "tests/temporary_directory.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDim = 8;
constexpr int64_t kStable = 2000;  // keys that are in every step of one thread
constexpr int64_t kOthers = 30000;
constexpr int64_t kBatch = 500;

// All columns of a row begin as 0 and get the same gradients, so they are
// equal; stable rows are all updated in one operation, so they are equal too.
class SavingStress {
 public:
  explicit SavingStress(Clock::duration duration) : duration_(duration) {
    TableOptions options = Options("saved", kDim);
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0;
    options.admission.access_threshold = 2;
    options.admission.record_times = true;
    table_ = MakeTable(options);
  }

  void Run() {
    // In the table before anything is saved.
    See(table_.get(), KeyRange(0, kStable));
    See(table_.get(), KeyRange(0, kStable));
    std::vector<std::thread> threads;
    threads.emplace_back([this] { Repeat([this](Rng*) { TrainStable(); }); });
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back(
          [this] { Repeat([this](Rng* rng) { TrainOthers(rng); }); });
    }
    threads.emplace_back([this] { Repeat([this](Rng* rng) { Look(rng); }); });
    threads.emplace_back([this] { Repeat([this](Rng*) { Evict(); }); });
    threads.emplace_back([this] {
      Repeat([this](Rng*) { EXPECT_TRUE(Export(*table_).size() > 0); });
    });
    const auto end = Clock::now() + duration_;
    while (Clock::now() < end && Failures() == 0) SaveAndCheck();
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    // A last delta has all that the others may have missed.
    const SavedTable last = SaveAs(SaveKind::kDelta, true);
    const auto copy = MakeTable(table_->options());
    Restore(copy.get(), last);
    EXPECT_TRUE(SameBits(testing::Export(*copy), testing::Export(*table_)));
    std::printf("%d saves while in use, the last of %zu files\n", saves_,
                last.files.size());
  }

 private:
  static std::map<Key, ExportedRow> Export(const Table& table) {
    return testing::Export(table);
  }

  void Repeat(const std::function<void(Rng*)>& body) {
    Rng rng(++seed_);
    while (!stop_ && Failures() == 0) body(&rng);
  }

  std::vector<Address> See(Table* table, const std::vector<Key>& keys) {
    std::vector<Address> addresses(keys.size());
    const std::vector<int64_t> time = {now_++ / 50};
    Occurrences seen;
    seen.times = time;
    EXPECT_OK(table->FindOrAdmit(keys, {}, seen, addresses, Serial()));
    return addresses;
  }

  void Add(const std::vector<Address>& addresses) {
    const std::vector<float> gradients(addresses.size() * kDim, -1.0f);
    SgdParams params;
    params.learning_rate = 1;
    EXPECT_OK(table_->ApplySgd(addresses, gradients.data(), params, Serial()));
  }

  void TrainStable() {
    const auto step = BeginStep(table_.get());
    const std::vector<Address> addresses =
        See(table_.get(), KeyRange(0, kStable));
    Add(addresses);
  }

  void TrainOthers(Rng* rng) {
    std::vector<Key> keys(kBatch);
    for (Key& key : keys) key = kStable + Below(rng, kOthers);
    const auto step = BeginStep(table_.get());
    Add(See(table_.get(), keys));
  }

  void Look(Rng* rng) {
    std::vector<Key> keys(kBatch);
    for (Key& key : keys) key = Below(rng, kStable + kOthers);
    const auto step = BeginStep(table_.get());
    std::vector<Address> hints = LookAhead(table_.get(), keys, false);
    std::vector<Address> addresses(keys.size());
    Occurrences seen;
    EXPECT_OK(table_->FindOrAdmit(keys, hints, seen, addresses, Serial()));
    std::vector<float> out(keys.size() * kDim);
    EXPECT_OK(table_->Gather(addresses, nullptr, out.data(), Serial()));
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], out[i / kDim * kDim]);
    }
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
    SavedTable saved;
    EXPECT_OK(table_->Save(request, &saved));
    // So that no other save takes the files for abandoned.
    std::fclose(std::fopen((request.prefix + ".index").c_str(), "w"));
    if (complete) table_->CommitSave(request.prefix);
    prefix_ = request.prefix;
    return saved;
  }

  void Restore(Table* table, const SavedTable& saved) {
    RestoreRequest request;
    request.prefix = prefix_;
    request.saved = saved;
    request.threads = 3;
    RestoreReport report;
    EXPECT_OK(table->Restore(request, &report));
    EXPECT_EQ(report.keys, saved.manifest.size);
  }

  void SaveAndCheck() {
    const int turn = saves_ % 12;
    const SaveKind kind = turn == 0   ? SaveKind::kBase
                          : turn == 5 ? SaveKind::kPlain
                                      : SaveKind::kDelta;
    const SavedTable saved = SaveAs(kind, turn != 7);
    const auto copy = MakeTable(table_->options());
    Restore(copy.get(), saved);
    const auto rows = testing::Export(*copy);
    EXPECT_EQ(static_cast<int64_t>(rows.size()), saved.manifest.size);
    const auto first = rows.find(0);
    if (first == rows.end()) return Fail("a stable key is missing");
    for (const auto& row : rows) {
      for (const float value : row.second.row) {
        EXPECT_EQ(value, row.second.row[0]);
      }
      if (row.first < kStable) {
        EXPECT_EQ(row.second.row[0], first->second.row[0]);
      }
    }
  }

  static void Fail(const char* what) {
    EXPECT_EQ(std::string(what), std::string());
  }

  const Clock::duration duration_;
  const TemporaryDirectory directory_;
  std::shared_ptr<Table> table_;
  std::atomic<int64_t> now_{0};
  std::atomic<int> seed_{0};
  std::atomic<bool> stop_{false};
  std::string prefix_;
  int saves_ = 0;
};

}  // namespace

void StressSaving(Clock::duration duration) { SavingStress(duration).Run(); }

}  // namespace testing
}  // namespace mxrec
