// Tables of fixed capacity: keys here, rows in an array of somebody else.
#include <algorithm>
#include <atomic>
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

std::shared_ptr<Table> MakeFixed(int64_t capacity, int dim = 3) {
  TableOptions options = Options("fixed_table", dim);
  options.fixed_capacity = capacity;
  return MakeTable(options);
}

std::vector<int64_t> Offsets(const Table& table,
                             const std::vector<Address>& addresses,
                             bool* all_initialized = nullptr) {
  std::vector<int64_t> offsets(addresses.size(), -9);
  bool all = false;
  ASSERT_OK(table.Offsets(addresses, offsets, &all));
  if (all_initialized != nullptr) *all_initialized = all;
  return offsets;
}

TEST(Fixed_OffsetsAreDistinctAndWithoutAGap) {
  for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
    const auto table = MakeFixed(5000);
    EXPECT_EQ(table->capacity(), 5000);
    EXPECT_EQ(table->stride(), 0);
    std::vector<Key> keys = KeyRange(-2500, 5000);
    Rng rng(1);
    std::shuffle(keys.begin(), keys.end(), rng);
    std::set<int64_t> seen;
    for (int64_t first = 0; first < 5000; first += 1250) {
      const std::vector<Key> batch(keys.begin() + first,
                                   keys.begin() + first + 1250);
      const auto offsets =
          Offsets(*table, FindOrInsert(table.get(), batch, *parallel));
      seen.insert(offsets.begin(), offsets.end());
      EXPECT_EQ(seen.size(), first + 1250);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), first + 1249);
      EXPECT_TRUE(offsets == Offsets(*table, Find(*table, batch)));
    }
    EXPECT_EQ(Offsets(*table, {kNoRow})[0], -1);
    EXPECT_EQ(Find(*table, {99999})[0], kNoRow);
    const auto exported = Export(*table);
    EXPECT_EQ(exported.size(), 5000);
    for (const auto& [key, row] : exported) {
      EXPECT_EQ(row.row.size(), 0);
      EXPECT_EQ(row.count, 1);
    }
  }
}

TEST(Fixed_AFullTableSaysSoAndStaysUsable) {
  for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
    const auto table = MakeFixed(1000);
    const auto first = KeyRange(0, 900);
    const auto addresses = FindOrInsert(table.get(), first, *parallel);
    const auto more = KeyRange(800, 5000);
    std::vector<Address> out(more.size());
    for (const char* part :
         {"fixed_table", "1000 and", "holds 1000 keys",
          "device_vocabulary_size", "use_dynamic_expansion=True"}) {
      EXPECT_ERROR(table->FindOrInsert(more, {}, {}, out, *parallel),
                   Code::kResourceExhausted, part);
    }
    EXPECT_EQ(table->size(), 1000);
    EXPECT_TRUE(Find(*table, first) == addresses);
    EXPECT_TRUE(FindOrInsert(table.get(), first, *parallel) == addresses);
    // Whatever fitted has an offset of its own.
    std::vector<Address> found;
    for (Address address : Find(*table, more)) {
      if (address != kNoRow) found.push_back(address);
    }
    EXPECT_EQ(found.size(), 200);
    auto offsets = Offsets(*table, Find(*table, KeyRange(0, 800)));
    for (int64_t offset : Offsets(*table, found)) offsets.push_back(offset);
    std::sort(offsets.begin(), offsets.end());
    EXPECT_TRUE(offsets == KeyRange(0, 1000));
  }
}

TEST(Fixed_LookingAheadReservesNothing) {
  const auto table = MakeFixed(4);
  const auto hints = LookAhead(table.get(), {1, 2, 3, 4, 5, 6}, true);
  for (Address hint : hints) EXPECT_EQ(hint, kNoRow);
  const auto addresses = FindOrInsert(table.get(), {7, 8, 9, 10});
  EXPECT_TRUE(LookAhead(table.get(), {7, 8, 9, 10}, true) == addresses);
}

TEST(Fixed_RowsAreInitializedOnceWithTheirKeysValues) {
  const auto table = MakeFixed(100);
  const auto keys = KeyRange(40, 60);
  const auto addresses = FindOrInsert(table.get(), keys);
  bool all = true;
  const auto offsets = Offsets(*table, addresses, &all);
  EXPECT_FALSE(all);
  std::vector<float> rows(300, -1.0f);
  int written = 0;
  const auto write = [&](int64_t offset, const float* initial) {
    std::copy_n(initial, 3, rows.data() + offset * 3);
    ++written;
  };
  for (int round = 0; round < 2; ++round) {
    // Strangers among them are left alone: no row, beyond the end, no key yet.
    std::vector<int64_t> some(offsets.begin(), offsets.begin() + 30);
    for (int64_t stranger : {-1, 100, 1 << 20, 77}) some.push_back(stranger);
    some.push_back(some[0]);
    written = 0;
    ASSERT_OK(table->InitializeRows(some, write));
    EXPECT_EQ(written, 30);
    Offsets(*table, addresses, &all);
    EXPECT_FALSE(all);
    Offsets(*table, {addresses[0], kNoRow, addresses[29]}, &all);
    EXPECT_TRUE(all);
    ASSERT_OK(table->InitializeRows(offsets, write));
    EXPECT_EQ(written, 60);
    Offsets(*table, addresses, &all);
    EXPECT_TRUE(all);
    ASSERT_OK(table->InitializeRows(offsets, write));
    EXPECT_EQ(written, 60);
    // The same rows as a growing table would give.
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto expected = InitialRow(*table, keys[i]);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                             rows.begin() + offsets[i] * 3));
    }
    table->ForgetInitializedRows();
    Offsets(*table, addresses, &all);
    EXPECT_FALSE(all);
  }
}

TEST(Fixed_TrainedPositionsLeaveOutPaddingKeys) {
  TableOptions options = Options("fixed_table", 2);
  options.fixed_capacity = 50;
  options.padding_keys = {0, 5};
  const auto table = MakeTable(options);
  const auto offsets =
      Offsets(*table, FindOrInsert(table.get(), {5, 1, 0, 2, 5}));
  std::vector<int64_t> positions = {99};
  ASSERT_OK(table->TrainedPositions(offsets, &positions));
  EXPECT_TRUE(positions == std::vector<int64_t>({1, 3}));
  ASSERT_OK(table->TrainedPositions(
      std::vector<int64_t>{-1, offsets[1], offsets[0], 49, -1}, &positions));
  EXPECT_TRUE(positions == std::vector<int64_t>({1, 3}));
  ASSERT_OK(table->TrainedPositions({}, &positions));
  EXPECT_EQ(positions.size(), 0);
  for (int64_t illegal : {-2, 50}) {
    EXPECT_ERROR(
        table->TrainedPositions(std::vector<int64_t>{0, illegal}, &positions),
        Code::kInvalidArgument, std::to_string(illegal));
  }
}

TEST(Fixed_IllegalAddressesAreRefused) {
  const auto table = MakeFixed(10);
  const auto other = MakeFixed(10);
  const Address good = FindOrInsert(table.get(), {1})[0];
  const Address foreign = FindOrInsert(other.get(), {1})[0];
  std::vector<int64_t> offsets(3);
  bool all = false;
  for (Address illegal : {Address{-1}, Address{12}, foreign, good + 1}) {
    const std::vector<Address> addresses = {good, kNoRow, illegal};
    EXPECT_ERROR(table->Offsets(addresses, offsets, &all),
                 Code::kInvalidArgument, "position 2");
  }
}

TEST(Fixed_EachKindOfTableRefusesWhatTheOtherDoes) {
  const auto fixed = MakeFixed(10, 1);
  const auto growing = MakeTable(Options("growing_table", 1));
  float value = 0;
  const std::vector<Address> none = {kNoRow};
  EXPECT_ERROR(fixed->Gather(none, nullptr, &value, Serial()),
               Code::kFailedPrecondition, "fixed_table");
  EXPECT_ERROR(fixed->ApplySgd(none, &value, {}, Serial()),
               Code::kFailedPrecondition, "fixed_table");
  EXPECT_ERROR(fixed->ApplyLazyAdam(none, &value, {}, Serial()),
               Code::kFailedPrecondition, "fixed_table");
  EXPECT_ERROR(fixed->ApplyAdagrad(none, &value, {}, Serial()),
               Code::kFailedPrecondition, "fixed_table");
  EXPECT_ERROR(fixed->ApplyFtrl(none, &value, {0.1f}, Serial()),
               Code::kFailedPrecondition, "fixed_table");
  std::vector<int64_t> offsets(1);
  bool all = false;
  EXPECT_ERROR(growing->Offsets(none, offsets, &all), Code::kFailedPrecondition,
               "growing_table");
  EXPECT_ERROR(growing->InitializeRows(offsets, [](int64_t, const float*) {}),
               Code::kFailedPrecondition, "growing_table");
  EXPECT_ERROR(growing->TrainedPositions(offsets, &offsets),
               Code::kFailedPrecondition, "growing_table");
  growing->ForgetInitializedRows();
  TableOptions options = Options("negative", 1);
  options.fixed_capacity = -1;
  std::shared_ptr<Table> table;
  EXPECT_ERROR(Table::Create(options, &table), Code::kInvalidArgument, "-1");
}

TEST(Fixed_AfterReleaseEverythingSaysSo) {
  const auto table = MakeFixed(10);
  const auto addresses = FindOrInsert(table.get(), {1});
  table->Release();
  std::vector<int64_t> offsets(1);
  bool all = false;
  EXPECT_ERROR(table->Offsets(addresses, offsets, &all),
               Code::kFailedPrecondition, "fixed_table");
  EXPECT_ERROR(table->InitializeRows(offsets, [](int64_t, const float*) {}),
               Code::kFailedPrecondition, "fixed_table");
  EXPECT_ERROR(table->TrainedPositions(offsets, &offsets),
               Code::kFailedPrecondition, "fixed_table");
  table->ForgetInitializedRows();
  EXPECT_EQ(table->capacity(), 0);
}

TEST(Fixed_ThreadsFillATableWithoutAGap) {
  constexpr int kThreads = 4;
  constexpr int64_t kCapacity = 3000;
  const auto table = MakeFixed(kCapacity);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t);
      for (int i = 0; i < 60; ++i) {
        std::vector<Key> keys(300);
        for (Key& key : keys) key = Below(&rng, 40 + i * 80);
        std::vector<Address> addresses(keys.size());
        const Status status =
            table->FindOrInsert(keys, {}, {}, addresses, Serial());
        if (!status.ok()) {
          EXPECT_ERROR(status, Code::kResourceExhausted, "3000");
          ++refused;
          continue;
        }
        const auto offsets = Offsets(*table, addresses);
        for (int64_t offset : offsets) {
          EXPECT_TRUE(0 <= offset && offset < kCapacity);
        }
        std::vector<int64_t> positions;
        EXPECT_OK(table->TrainedPositions(offsets, &positions));
        EXPECT_EQ(positions.size(), offsets.size());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LT(0, refused.load());
  EXPECT_EQ(table->size(), kCapacity);
  std::vector<Key> keys;
  for (const auto& [key, row] : Export(*table)) keys.push_back(key);
  auto offsets = Offsets(*table, Find(*table, keys));
  std::sort(offsets.begin(), offsets.end());
  EXPECT_TRUE(offsets == KeyRange(0, kCapacity));
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
