// What becomes of evicted keys, their rows and the addresses of them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "mxrec/table.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

TableOptions Evicting(int dim = 4) {
  TableOptions options = Options("evicting", dim);
  options.admission.record_times = true;
  return options;
}

std::vector<Address> See(Table* table, const std::vector<Key>& keys,
                         int64_t time) {
  std::vector<Address> addresses(keys.size(), -1);
  const std::vector<int64_t> times = {time};
  Occurrences seen;
  seen.times = times;
  ASSERT_OK(table->FindOrAdmit(keys, {}, seen, addresses, Serial()));
  return addresses;
}

int64_t Evict(Table* table, int64_t threshold) {
  Evicted evicted;
  ASSERT_OK(table->Evict(threshold, &evicted));
  return evicted.keys;
}

TEST(Evict_GoesByTheTimesOfTheData) {
  const auto table = MakeTable(Evicting());
  See(table.get(), {1, 2, 3}, 100);
  See(table.get(), {2}, 105);
  See(table.get(), {3}, 90);  // late data makes nothing older
  See(table.get(), {4}, 107);
  EXPECT_EQ(Evict(table.get(), 8), 0);
  EXPECT_EQ(Evict(table.get(), 7), 2);  // 1 and 3: 107 - 100
  EXPECT_EQ(table->size(), 2);
  EXPECT_EQ(Find(*table, {1})[0], kNoRow);
  EXPECT_NE(Find(*table, {2})[0], kNoRow);
  EXPECT_EQ(Evict(table.get(), 0), 2);  // even the newest
  EXPECT_EQ(table->size(), 0);
  EXPECT_EQ(Export(*table).size(), 0);
  EXPECT_EQ(table->eviction_stats().evicted_keys, 4);
  Evicted evicted;
  EXPECT_ERROR(table->Evict(-1, &evicted), Code::kInvalidArgument, "evicting");
  EXPECT_ERROR(MakeTable(Options("timeless", 2))->Evict(1, &evicted),
               Code::kFailedPrecondition, "eviction_threshold");
  std::vector<Address> out(1);
  const std::vector<int64_t> before = {-1};
  Occurrences seen;
  seen.times = before;
  EXPECT_ERROR(table->FindOrAdmit(std::vector<Key>{1}, {}, seen, out, Serial()),
               Code::kInvalidArgument, "position 0");
}

TEST(Evict_AnEvictedKeyStartsAnew) {
  const auto table = MakeTable(Evicting());
  const auto old = See(table.get(), {7, 8}, 10);
  const std::vector<float> gradients(8, 1.0f);
  EXPECT_OK(table->ApplyLazyAdam(old, gradients.data(), {}, Serial()));
  EXPECT_EQ(Evict(table.get(), 0), 2);
  const auto fresh = See(table.get(), {8, 9}, 20);
  for (const Key key : {8, 9}) {
    const auto row = Export(*table).at(key);
    std::vector<float> expected = InitialRow(*table, key);
    expected.resize(12, 0.0f);  // slots too
    EXPECT_TRUE(SameBits(row.row, expected));
    EXPECT_EQ(row.count, 1);
    EXPECT_EQ(row.time, 20);
  }
  // Rows are used again, under other addresses.
  EXPECT_TRUE(std::find(old.begin(), old.end(), fresh[0]) == old.end());
  EXPECT_ERROR(table->ApplySgd(old, gradients.data(), {1, 0}, Serial()),
               Code::kInvalidArgument, "evicted");
}

TEST(Evict_RowsAreUsedAgain) {
  for (const int64_t capacity : {0, 600}) {
    TableOptions options = Evicting();
    options.fixed_capacity = capacity;
    const auto table = MakeTable(options);
    for (int round = 0; round < 40; ++round) {
      See(table.get(), KeyRange(round * 1000, 500), round);
      EXPECT_EQ(table->size(), 500);
      EXPECT_EQ(Evict(table.get(), 0), 500);
    }
    EXPECT_LE(table->capacity(), 1 << 16);
    if (capacity == 0) {
      // Shards take rows in runs of 16, and hold more or fewer of the keys.
      EXPECT_LE(table->memory().row_bytes, 2 * 16 * 256 * 4 * 4);
    }
  }
}

TEST(Evict_AStepKeepsItsRows) {
  const auto table = MakeTable(Evicting());
  auto step = BeginStep(table.get());
  const auto addresses = See(table.get(), {1}, 10);
  const auto row = Gather(*table, addresses);
  EXPECT_EQ(Evict(table.get(), 0), 1);
  const auto later = BeginStep(table.get());
  const auto others = See(table.get(), KeyRange(100, 3000), 20);
  // Readable and updatable, without effect on anything live.
  EXPECT_TRUE(SameBits(Gather(*table, addresses), row));
  const std::vector<float> gradients(4, 1.0f);
  EXPECT_OK(table->ApplySgd(addresses, gradients.data(), {1, 0}, Serial()));
  EXPECT_EQ(Gather(*table, addresses)[0], row[0] - 1);
  for (const auto& [key, exported] : Export(*table)) {
    EXPECT_TRUE(SameBits(exported.row, InitialRow(*table, key)));
  }
  EXPECT_EQ(Find(*table, {1})[0], kNoRow);
  // An address of it is no hint.
  std::vector<Address> found(1);
  EXPECT_OK(table->Find(std::vector<Key>{1}, addresses, found, Serial()));
  EXPECT_EQ(found[0], kNoRow);
  EXPECT_EQ(table->eviction_stats().rows_waiting, 1);
  step.reset();  // `later` began after the eviction
  See(table.get(), KeyRange(10000, 100000), 20);
  EXPECT_EQ(table->eviction_stats().rows_waiting, 0);
  std::vector<float> out(4);
  EXPECT_ERROR(table->Gather(addresses, nullptr, out.data(), Serial()),
               Code::kInvalidArgument, "evicted");
  EXPECT_TRUE(BeginStep(MakeTable(Options("lasting", 2)).get()) == nullptr);
}

TEST(Evict_AStepMayOutliveItsTable) {
  std::shared_ptr<void> step;
  {
    const auto table = MakeTable(Evicting());
    See(table.get(), {1}, 1);
    step = BeginStep(table.get());
    Evict(table.get(), 0);
  }
  step.reset();
}

// A row of a growing table is given up rather than be mistaken for its first
// use; a table of fixed capacity goes on.
TEST(Evict_GenerationsDoNotWrapWhereRowsGrow) {
  for (const int64_t capacity : {0, 1}) {
    TableOptions options = Evicting();
    options.fixed_capacity = capacity;
    const auto table = MakeTable(options);
    std::set<Address> seen;
    for (int round = 0; round < 2 * (1 << kGenerationBits) + 10; ++round) {
      const auto addresses = See(table.get(), {5}, round);
      const bool is_new = seen.insert(addresses[0]).second;
      if (capacity == 0) EXPECT_TRUE(is_new);
      EXPECT_EQ(Evict(table.get(), 0), 1);
    }
    if (capacity == 0) EXPECT_LE(table->memory().row_bytes, 64 * 16);
  }
}

TEST(Evict_FixedRowsAndSlotsAreInitializedAgain) {
  TableOptions options = Evicting(3);
  options.fixed_capacity = 4;
  options.padding_keys = {2};
  const auto table = MakeTable(options);
  std::vector<int64_t> offsets(2);
  bool all = false;
  const auto initialize = [&](std::vector<int64_t> at) {
    std::vector<int64_t> written;
    EXPECT_OK(table->InitializeRows(at, [&](int64_t offset, const float* row) {
      EXPECT_TRUE(row != nullptr);
      written.push_back(offset);
    }));
    return written;
  };
  const auto reset = [&](std::vector<int64_t> at) {
    std::vector<int64_t> written;
    EXPECT_OK(table->ResetSlots(
        at, [&](int64_t offset) { written.push_back(offset); }));
    return written;
  };
  EXPECT_OK(table->Offsets(See(table.get(), {1, 2}, 1), offsets, &all));
  EXPECT_FALSE(all);
  EXPECT_TRUE(initialize({0, 1, -1}) == (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(reset({-1, 0, 1, 3}).size(), 0);  // slots begin as they should
  EXPECT_EQ(Evict(table.get(), 0), 2);
  EXPECT_OK(table->Offsets(See(table.get(), {3, 4}, 2), offsets, &all));
  EXPECT_FALSE(all);
  EXPECT_EQ(std::max(offsets[0], offsets[1]), 1);
  EXPECT_EQ(initialize({0, 1}).size(), 2);
  EXPECT_EQ(reset({0, 1}).size(), 2);
  EXPECT_EQ(reset({0, 1}).size(), 0);
  // Neither key is a padding key, whatever was in its row before.
  std::vector<int64_t> positions;
  EXPECT_OK(table->TrainedPositions(offsets, &positions));
  EXPECT_EQ(positions.size(), 2);
  EXPECT_ERROR(table->ResetSlots(std::vector<int64_t>{4}, [](int64_t) {}),
               Code::kInvalidArgument, "illegal offset");
}

// A step may insert a key, lose it, and only then come to its row.
TEST(Evict_AStepInitializesARowThatItLost) {
  TableOptions options = Evicting(3);
  options.fixed_capacity = 4;
  const auto table = MakeTable(options);
  const auto step = BeginStep(table.get());
  std::vector<int64_t> offsets(1);
  bool all = true;
  const auto addresses = See(table.get(), {7}, 1);
  EXPECT_EQ(Evict(table.get(), 0), 1);
  EXPECT_OK(table->Offsets(addresses, offsets, &all));
  EXPECT_FALSE(all);
  int written = 0;
  EXPECT_OK(table->InitializeRows(offsets, [&](int64_t, const float* row) {
    EXPECT_EQ(row[0], InitialRow(*table, 7)[0]);
    ++written;
  }));
  EXPECT_EQ(written, 1);
}

TEST(Evict_ErasedKeysAreWrittenDownIfAskedFor) {
  const auto table = MakeTable(Evicting());
  std::vector<Key> erased;
  See(table.get(), {1, 2}, 1);
  Evict(table.get(), 0);
  table->TakeErasedKeys(&erased);
  EXPECT_EQ(erased.size(), 0);
  table->LogErasedKeys(true);
  See(table.get(), {3, 4, 5}, 2);
  See(table.get(), {4}, 4);
  Evict(table.get(), 2);
  table->TakeErasedKeys(&erased);
  std::sort(erased.begin(), erased.end());
  EXPECT_TRUE(erased == (std::vector<Key>{3, 5}));
  table->TakeErasedKeys(&erased);
  EXPECT_EQ(erased.size(), 0);
}

TEST(Bound_TheLeastRecentGoFirst) {
  TableOptions options = Options("bounded", 2);
  options.admission.max_keys = 100;
  options.admission.use_lookup_clock = true;
  const auto table = MakeTable(options);
  for (Key key = 0; key < 100; ++key) FindOrInsert(table.get(), {key});
  EXPECT_EQ(table->size(), 100);
  FindOrInsert(table.get(), KeyRange(0, 20));  // seen again
  FindOrInsert(table.get(), {1000});
  EXPECT_EQ(table->size(), 90);
  for (Key key = 0; key < 100; ++key) {
    // 101 keys were there, 11 had to go: those of 20 to 30.
    EXPECT_EQ(Find(*table, {key})[0] == kNoRow, key >= 20 && key < 31);
  }
  EXPECT_NE(Find(*table, {1000})[0], kNoRow);
}

TEST(Bound_TheLeastFrequentGoFirst) {
  TableOptions options = Options("bounded", 2);
  options.admission.max_keys = 50;
  options.admission.evict_policy = EvictPolicy::kLeastFrequent;
  options.admission.use_lookup_clock = true;
  const auto table = MakeTable(options);
  for (int round = 0; round < 3; ++round) {
    FindOrInsert(table.get(), KeyRange(0, 30));
  }
  for (Key key = 100; key < 400; ++key) {
    FindOrInsert(table.get(), {key});
    EXPECT_LE(table->size(), 50);
    EXPECT_NE(Find(*table, {key})[0], kNoRow);  // of equal ones, the last stays
  }
  const auto kept = Find(*table, KeyRange(0, 30));
  EXPECT_EQ(std::count(kept.begin(), kept.end(), kNoRow), 0);
}

TEST(Bound_AStreamStaysInBoundedMemory) {
  for (const auto policy :
       {EvictPolicy::kLeastRecent, EvictPolicy::kLeastFrequent}) {
    TableOptions options = Options("bounded", 2);
    options.admission.max_keys = 100000;
    options.admission.evict_policy = policy;
    options.admission.use_lookup_clock = true;
    options.admission.access_threshold = 2;
    const auto table = MakeTable(options);
    int64_t most_rows = 0, most_candidates = 0;
    for (int step = 0; step < 300; ++step) {
      std::vector<Key> keys = KeyRange(step * 4000, 8000);  // half are new
      FindOrInsert(table.get(), keys, FourThreads());
      EXPECT_LE(table->size(), 100000 + 8000);
      most_rows = std::max(most_rows, table->memory().row_bytes / 8);
      most_candidates =
          std::max(most_candidates, table->eviction_stats().candidates);
    }
    EXPECT_LE(90000, table->size());
    EXPECT_LE(most_rows, 140000);
    EXPECT_LE(most_candidates, 100000 + 256 * 16);
    EXPECT_LE(900000, table->eviction_stats().evicted_keys);
  }
}

TEST(Evict_LookupsDoNotWaitForIt) {
  TableOptions options = Evicting(1);
  const auto table = MakeTable(options);
  for (Key first = 0; first < 400000; first += 20000) {
    See(table.get(), KeyRange(first, 20000), first < 200000 ? 1 : 100);
  }
  std::atomic<bool> done{false};
  std::atomic<int64_t> evicted{0};
  std::thread evictor([&] {
    evicted = Evict(table.get(), 50);
    done = true;
  });
  int64_t lookups = 0;
  const auto keys = KeyRange(300000, 500);
  do {
    const auto found = Find(*table, keys);
    EXPECT_EQ(std::count(found.begin(), found.end(), kNoRow), 0);
    ++lookups;
  } while (!done);
  evictor.join();
  EXPECT_EQ(evicted.load(), 200000);
  EXPECT_LT(1, lookups);
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
