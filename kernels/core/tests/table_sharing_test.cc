// Saves of tables of fixed capacity that let steps write rows meanwhile.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "mxrec/saving.h"
#include "tests/fixed_rows.h"
#include "tests/table_utils.h"
#include "tests/temporary_directory.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

constexpr int kDim = 64;
constexpr int64_t kKeys = 30000;  // of several buffers

class Fixture {
 public:
  Fixture() {
    TableOptions options = Options("t", kDim);
    options.fixed_capacity = kKeys;
    options.record_counts = false;
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0;
    table = MakeTable(options);
    rows = std::make_unique<FixedRows>(table.get());
    request.prefix = directory_ / "m";
    rows->ShareIn(&request);
  }
  void Train(const std::vector<Key>& keys) {
    const auto addresses = FindOrInsert(table.get(), keys);
    const auto writes = BeginWrites(table.get());
    rows->Add(rows->Offsets(addresses, writes.get()), 1);
  }
  std::map<Key, ExportedRow> Restored(const SavedTable& saved) const {
    TableOptions options = table->options();
    options.fixed_capacity = 0;
    const auto grows = MakeTable(options);
    RestoreRequest restore;
    restore.prefix = request.prefix;
    restore.saved = saved;
    RestoreReport report;
    EXPECT_OK(grows->Restore(restore, &report));
    return Export(*grows);
  }

  std::shared_ptr<Table> table;
  std::unique_ptr<FixedRows> rows;
  SaveRequest request;

 private:
  const TemporaryDirectory directory_;
};

TEST(Sharing_StepsThatBeginDuringASaveAreNotInIt) {
  Fixture f;
  f.Train(KeyRange(0, kKeys));
  // All rows are written from within the first look at one, and again.
  const auto read = f.request.read_rows;
  std::atomic<bool> began{false};
  std::thread training;
  f.request.read_rows = [&](Span<const RowIndex> offsets, float* out) {
    if (!began.exchange(true)) {
      training = std::thread([&] {
        for (int i = 0; i < 3; ++i) f.Train(KeyRange(0, kKeys));
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    read(offsets, out);
  };
  SavedTable saved;
  ASSERT_OK(f.table->Save(f.request, &saved));
  training.join();
  EXPECT_EQ(saved.manifest.notes["rows_stood_still"], "0");
  const auto rows = f.Restored(saved);
  EXPECT_EQ(rows.size(), kKeys);
  for (const auto& [key, row] : rows) {
    EXPECT_EQ(row.row[0], 1.0f);
    EXPECT_EQ(row.row[2 * kDim - 1], 1.0f);
  }
  EXPECT_EQ(f.rows->Row(5)[0], 4.0f);
}

TEST(Sharing_ASaveWaitsForStepsAndStepsWaitForItsBeginning) {
  Fixture f;
  f.Train({1, 2, 3});
  auto writes = BeginWrites(f.table.get());
  bool shared = false;
  f.request.wait_for_writes = std::chrono::minutes(5);
  f.request.share_rows = [&](int64_t* steps) {
    // Nobody begins now.
    std::shared_ptr<RowWrites> none;
    EXPECT_OK(f.table->BeginWrites(&none));
    EXPECT_TRUE(none == nullptr);
    shared = true;
    *steps = 7;
    return true;
  };
  SavedTable saved;
  std::thread save([&] { EXPECT_OK(f.table->Save(f.request, &saved)); });
  std::atomic<int> called{0};
  while (!f.table->WaitForWrites([&] { ++called; })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(shared);
  EXPECT_EQ(called.load(), 0);
  writes.reset();
  save.join();
  EXPECT_TRUE(shared);
  EXPECT_EQ(called.load(), 1);
  EXPECT_EQ(saved.manifest.steps, 7);
  EXPECT_FALSE(f.table->WaitForWrites([&] { ++called; }));
  EXPECT_EQ(called.load(), 1);
}

// Each of two saves has a gate closed behind which a step waits that the other
// one waits for.
TEST(Sharing_SavesOfTwoTablesDoNotWaitForEachOther) {
  Fixture a, b;
  a.Train({1});
  b.Train({1});
  std::atomic<int> inside{0};
  std::atomic<int> closed{0};
  const auto step = [&](Fixture* first, Fixture* second) {
    const auto writes = BeginWrites(first->table.get());
    ++inside;
    while (closed < 2) std::this_thread::yield();
    BeginWrites(second->table.get());
  };
  const auto save = [&](Fixture* fixture) {
    fixture->request.wait_for_writes = std::chrono::minutes(1);
    SavedTable saved;
    EXPECT_OK(fixture->table->Save(fixture->request, &saved));
    EXPECT_EQ(saved.manifest.notes["rows_stood_still"], "0");
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { step(&a, &b); });
  threads.emplace_back([&] { step(&b, &a); });
  while (inside < 2) std::this_thread::yield();
  threads.emplace_back([&] { save(&a); });
  threads.emplace_back([&] { save(&b); });
  for (Fixture* const fixture : {&a, &b}) {
    while (!fixture->table->WaitForWrites([] {})) std::this_thread::yield();
    ++closed;
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Sharing_RowsAreHeldIfAStepDoesNotEnd) {
  Fixture f;
  f.Train({1, 2, 3});
  const auto writes = BeginWrites(f.table.get());
  f.request.wait_for_writes = std::chrono::milliseconds(20);
  f.request.share_rows = [](int64_t*) {
    EXPECT_TRUE(false);
    return true;
  };
  bool held = false;
  f.request.hold_rows = [&](int64_t* steps) {
    held = true;
    *steps = 3;
  };
  SavedTable saved;
  ASSERT_OK(f.table->Save(f.request, &saved));
  EXPECT_TRUE(held);
  EXPECT_EQ(saved.manifest.steps, 3);
  EXPECT_EQ(saved.manifest.notes["rows_stood_still"], "1");
  // And if they cannot be shared.
  held = false;
  f.request.share_rows = [](int64_t*) { return false; };
  f.request.wait_for_writes = std::chrono::milliseconds(0);
  ASSERT_OK(f.table->Save(f.request, &saved));
  EXPECT_TRUE(held);
  std::shared_ptr<RowWrites> more;
  EXPECT_OK(f.table->BeginWrites(&more));
  EXPECT_TRUE(more != nullptr);
}

// A step that has looked a row up writes it after the save of changes that
// holds the rows: the next one has it.
TEST(Sharing_WhatAStepWritesAfterAHeldSaveIsInTheNextDelta) {
  Fixture f;
  f.Train({1, 2, 3});
  const auto save = [&](SaveKind kind) {
    f.request.kind = kind;
    f.request.prefix += "i";
    SavedTable saved;
    EXPECT_OK(f.table->Save(f.request, &saved));
    f.table->CommitSave(f.request.prefix);
    return saved;
  };
  save(SaveKind::kBase);
  for (const bool shares : {false, true}) {
    const auto addresses = FindOrInsert(f.table.get(), {2});
    std::shared_ptr<RowWrites> writes;
    std::vector<int64_t> offsets;
    const auto look_up = [&] {
      writes = BeginWrites(f.table.get());
      offsets = f.rows->Offsets(addresses, writes.get());
    };
    if (!shares) look_up();
    f.request.wait_for_writes = std::chrono::milliseconds(5);
    SavedTable saved = save(SaveKind::kDelta);
    EXPECT_EQ(saved.manifest.notes["rows_stood_still"], shares ? "0" : "1");
    EXPECT_EQ(saved.manifest.rows, 1);
    if (shares) look_up();
    f.rows->Add(offsets, 1);
    writes.reset();
    saved = save(SaveKind::kDelta);
    EXPECT_EQ(saved.manifest.rows, 1);
    EXPECT_EQ(f.Restored(saved).at(2).row[0], shares ? 3.0f : 2.0f);
    EXPECT_EQ(save(SaveKind::kDelta).manifest.rows, 0);
  }
}

// Steps do not wait for a disk that takes no more.
TEST(Sharing_StepsGoOnWhenTheDiskIsFull) {
  Fixture f;
  f.Train(KeyRange(0, kKeys));
  std::atomic<bool> stop{false};
  std::atomic<int> steps{0};
  std::thread training([&] {
    while (!stop) {
      f.Train(KeyRange(0, kKeys));
      ++steps;
    }
  });
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit = old_limit;
  limit.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &limit);
  SavedTable saved;
  const Status status = f.table->Save(f.request, &saved);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  const int steps_then = steps;
  while (steps < steps_then + 2) std::this_thread::yield();
  EXPECT_OK(f.table->Save(f.request, &saved));
  stop = true;
  training.join();
  const auto rows = f.Restored(saved);
  EXPECT_EQ(rows.size(), kKeys);
  for (const auto& [key, row] : rows) {
    EXPECT_EQ(row.row[0], rows.begin()->second.row[0]);
    EXPECT_EQ(row.row[2 * kDim - 1], row.row[0]);
  }
}

TEST(Sharing_RowsThatBeginAnewDuringASaveAreSavedAsTheyWere) {
  Fixture f;
  f.Train(KeyRange(0, kKeys));
  const auto read = f.request.read_rows;
  bool began = false;
  f.request.share_rows = [](int64_t*) { return true; };
  std::thread forgets;
  f.request.read_rows = [&](Span<const RowIndex> offsets, float* out) {
    if (!std::exchange(began, true)) {
      forgets = std::thread([&] { f.table->ForgetInitializedRows(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    read(offsets, out);
  };
  SavedTable saved;
  ASSERT_OK(f.table->Save(f.request, &saved));
  forgets.join();
  for (const auto& [key, row] : f.Restored(saved)) {
    EXPECT_EQ(row.row[0], 1.0f);
  }
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
