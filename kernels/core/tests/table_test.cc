#include "mxrec/table.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

constexpr Key kMin = std::numeric_limits<Key>::min();
constexpr Key kMax = std::numeric_limits<Key>::max();

TEST(Table_CreateRefusesBadOptions) {
  std::shared_ptr<Table> table;
  for (int dim : {0, -1, 8193, std::numeric_limits<int>::max(),
                  std::numeric_limits<int>::min()}) {
    EXPECT_ERROR(Table::Create(Options("bad_table", dim), &table),
                 Code::kInvalidArgument, "bad_table");
    EXPECT_TRUE(table == nullptr);
  }
  TableOptions options = Options("bad_table", 4);
  options.initializer.kind = InitializerKind::kPool;
  for (int size : {0, 1, 3, 5, 7}) {
    options.initializer.pool.assign(size, 1.0f);
    EXPECT_ERROR(Table::Create(options, &table), Code::kInvalidArgument,
                 "bad_table");
    EXPECT_TRUE(table == nullptr);
  }
  options.initializer.pool.assign(8, 1.0f);
  EXPECT_OK(Table::Create(options, &table));
  for (int dim : {1, 8192}) {
    EXPECT_OK(Table::Create(Options("good", dim), &table));
    EXPECT_EQ(table->options().dim, dim);
    EXPECT_EQ(table->options().name, std::string("good"));
  }
}

TEST(Table_StartsEmpty) {
  const auto table = MakeTable(Options("t", 4));
  EXPECT_EQ(table->size(), 0);
  EXPECT_LE(0, table->capacity());
  EXPECT_EQ(table->stride(), 4);
  EXPECT_EQ(table->update_count(), 0);
  EXPECT_FALSE(table->released());
  EXPECT_EQ(Export(*table).size(), 0);
  EXPECT_EQ(Find(*table, {1})[0], kNoRow);
  // Empty batches.
  EXPECT_OK(table->FindOrInsert({}, {}, {}, {}, FourThreads()));
  EXPECT_OK(table->Find({}, {}, {}, FourThreads()));
  EXPECT_OK(table->LookAhead({}, true, {}, FourThreads()));
  EXPECT_OK(table->Gather({}, nullptr, nullptr, FourThreads()));
  EXPECT_EQ(table->size(), 0);
}

TEST(Table_RepeatedKeysInABatch) {
  for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
    const auto table = MakeTable(Options("t", 4));
    std::vector<Key> keys;
    for (int i = 0; i < 20000; ++i) keys.push_back(i % 7 * 1000);
    const auto addresses = FindOrInsert(table.get(), keys, *parallel);
    EXPECT_EQ(table->size(), 7);
    for (int i = 0; i < 20000; ++i) EXPECT_EQ(addresses[i], addresses[i % 7]);
    EXPECT_EQ(std::set<Address>(addresses.begin(), addresses.end()).size(), 7);
    int64_t total = 0;
    for (const auto& [key, row] : Export(*table)) total += row.count;
    EXPECT_EQ(total, 20000);
    // And again, all of them there, with right hints.
    std::vector<Address> again(keys.size());
    ASSERT_OK(table->FindOrInsert(keys, addresses, {}, again, *parallel));
    EXPECT_TRUE(again == addresses);
    for (const auto& [key, row] : Export(*table)) {
      EXPECT_EQ(row.count, 2 * ((20000 - key / 1000 + 6) / 7));
    }
  }
}

TEST(Table_ExtremeKeys) {
  const auto table = MakeTable(Options("t", 3));
  const std::vector<Key> keys = {kMin, kMax, 0, -1, 1, kMin + 1, kMax - 1};
  for (Address a : Find(*table, keys)) EXPECT_EQ(a, kNoRow);
  const auto addresses = FindOrInsert(table.get(), keys);
  EXPECT_EQ(std::set<Address>(addresses.begin(), addresses.end()).size(),
            keys.size());
  EXPECT_TRUE(Find(*table, keys) == addresses);
  const auto exported = Export(*table);
  const auto rows = Gather(*table, addresses);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(exported.count(keys[i]), 1);
    const auto initial = InitialRow(*table, keys[i]);
    EXPECT_TRUE(
        std::equal(initial.begin(), initial.end(), rows.begin() + 3 * i));
  }
  EXPECT_EQ(Find(*table, {2})[0], kNoRow);
}

TEST(Table_InitialRowsOfEveryKind) {
  for (InitializerKind kind :
       {InitializerKind::kConstant, InitializerKind::kUniform,
        InitializerKind::kNormal, InitializerKind::kTruncatedNormal,
        InitializerKind::kPool}) {
    TableOptions options = Options("t", 6);
    options.initializer.kind = kind;
    options.initializer.scale = 0.5f;
    for (int i = 0; i < 18; ++i) {
      options.initializer.pool.push_back(static_cast<float>(i));
    }
    const auto table = MakeTable(options);
    const auto keys = KeyRange(-500, 1000);
    const auto rows =
        Gather(*table, FindOrInsert(table.get(), keys, FourThreads()));
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto initial = InitialRow(*table, keys[i]);
      EXPECT_TRUE(
          std::equal(initial.begin(), initial.end(), rows.begin() + 6 * i));
    }
  }
}

TEST(Table_CountsAddUp) {
  const auto table = MakeTable(Options("t", 2));
  const std::vector<Key> keys = {5, 6, 5, 7};
  std::vector<Address> addresses(4);
  const std::vector<int32_t> counts = {std::numeric_limits<int32_t>::max(), 0,
                                       std::numeric_limits<int32_t>::max(), 3};
  ASSERT_OK(table->FindOrInsert(keys, {}, counts, addresses, Serial()));
  ASSERT_OK(table->FindOrInsert(keys, addresses, {}, addresses, Serial()));
  Find(*table, keys);
  LookAhead(table.get(), keys, true);
  const auto exported = Export(*table);
  EXPECT_EQ(exported.at(5).count,
            2 * int64_t{std::numeric_limits<int32_t>::max()} + 2);
  EXPECT_EQ(exported.at(6).count, 1);
  EXPECT_EQ(exported.at(7).count, 4);
}

TEST(Table_CountsAddUpAcrossThreads) {
  // With hints the keys are counted without any mutex, here few keys very
  // often.
  const auto table = MakeTable(Options("t", 1));
  const std::vector<Key> keys(2000, 7);
  const std::vector<Address> hints(keys.size(),
                                   FindOrInsert(table.get(), {7})[0]);
  constexpr int kThreads = 4;
  constexpr int kTimes = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<Address> addresses(keys.size());
      for (int i = 0; i < kTimes; ++i) {
        EXPECT_OK(table->FindOrInsert(keys, hints, {}, addresses, Serial()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(Export(*table).at(7).count,
            1 + int64_t{kThreads} * kTimes * static_cast<int64_t>(keys.size()));
}

TEST(Table_RefusesSpansThatDoNotFit) {
  const auto table = MakeTable(Options("span_table", 2));
  const std::vector<Key> keys = {1, 2, 3};
  std::vector<Address> three(3);
  const std::vector<Address> two_hints(2);
  const std::vector<int32_t> two_counts(2, 1);
  EXPECT_ERROR(table->FindOrInsert(keys, two_hints, {}, three, Serial()),
               Code::kInvalidArgument, "span_table");
  EXPECT_ERROR(table->FindOrInsert(keys, {}, two_counts, three, Serial()),
               Code::kInvalidArgument, "span_table");
  EXPECT_ERROR(table->Find(keys, two_hints, three, Serial()),
               Code::kInvalidArgument, "span_table");
  EXPECT_EQ(table->size(), 0);
}

TEST(Table_RefusesNegativeCounts) {
  const auto table = MakeTable(Options("count_table", 2));
  const std::vector<Key> keys = {1, 2, 3};
  std::vector<Address> addresses(3);
  EXPECT_ERROR(table->FindOrInsert(keys, {}, std::vector<int32_t>{1, -1, 1},
                                   addresses, Serial()),
               Code::kInvalidArgument, "count_table");
  EXPECT_EQ(table->size(), 0);
}

TEST(Table_ReservedRowsAreInvisible) {
  for (bool record_counts : {true, false}) {
    TableOptions options = Options("t", 4);
    options.record_counts = record_counts;
    const auto table = MakeTable(options);
    FindOrInsert(table.get(), KeyRange(0, 10));
    const auto keys = KeyRange(5, 10);  // 5 of them are new
    const auto hints = LookAhead(table.get(), keys, true);
    for (Address hint : hints) EXPECT_LT(0, hint);
    EXPECT_EQ(table->size(), 10);
    EXPECT_EQ(Export(*table).size(), 10);
    const auto found = Find(*table, keys);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(found[i], i < 5 ? hints[i] : kNoRow);
    }
    // Not even a right hint makes Find see them.
    std::vector<Address> with_hints(10);
    ASSERT_OK(table->Find(keys, hints, with_hints, Serial()));
    EXPECT_TRUE(with_hints == found);
    // Reserving again gives the same.
    EXPECT_TRUE(LookAhead(table.get(), keys, true) == hints);

    // By hint, by search, and by wrong hint they become visible.
    std::vector<Address> addresses(10);
    std::vector<Address> use = hints;
    use[6] = kNoRow;
    use[7] = hints[8];
    use[8] = -3;
    ASSERT_OK(table->FindOrInsert(keys, use, {}, addresses, Serial()));
    EXPECT_TRUE(addresses == hints);
    EXPECT_EQ(table->size(), 15);
    const auto exported = Export(*table);
    EXPECT_EQ(exported.size(), 15);
    for (Key key : keys) {
      EXPECT_TRUE(SameBits(exported.at(key).row, InitialRow(*table, key)));
      EXPECT_EQ(exported.at(key).count, !record_counts ? 0 : key < 10 ? 2 : 1);
    }
    EXPECT_TRUE(Find(*table, keys) == hints);
  }
}

TEST(Table_LookAheadWithoutReserveChangesNothing) {
  const auto table = MakeTable(Options("t", 4));
  const auto known = FindOrInsert(table.get(), {1, 2});
  const int64_t capacity = table->capacity();
  const auto hints = LookAhead(table.get(), {1, 3, 2}, false);
  EXPECT_EQ(hints[0], known[0]);
  EXPECT_EQ(hints[1], kNoRow);
  EXPECT_EQ(hints[2], known[1]);
  EXPECT_EQ(table->size(), 2);
  EXPECT_EQ(table->capacity(), capacity);
  for (const auto& [key, row] : Export(*table)) EXPECT_EQ(row.count, 1);
}

TEST(Table_RepeatedKeysReserveOneRow) {
  for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
    const auto table = MakeTable(Options("t", 4));
    std::vector<Key> keys;
    for (int i = 0; i < 20000; ++i) keys.push_back(i % 11);
    std::vector<Address> hints(keys.size());
    ASSERT_OK(table->LookAhead(keys, true, hints, *parallel));
    EXPECT_EQ(std::set<Address>(hints.begin(), hints.end()).size(), 11);
    EXPECT_EQ(table->size(), 0);
    const auto addresses = FindOrInsert(table.get(), keys, *parallel);
    EXPECT_TRUE(addresses == hints);
    EXPECT_EQ(table->size(), 11);
  }
}

TEST(Table_HintsNeverChangeAResult) {
  const auto table = MakeTable(Options("t", 4));
  const auto keys = KeyRange(0, 1000);
  const auto right = FindOrInsert(table.get(), keys);
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Address> hints = right;
    for (Address& hint : hints) {
      switch (Below(&rng, 4)) {
        case 0:
          hint = right[Below(&rng, 1000)];
          break;
        case 1:
          hint ^= Address{1} << Below(&rng, 63);
          break;
        case 2:
          hint = static_cast<Address>(rng());
          break;
      }
    }
    std::vector<Address> found(keys.size());
    ASSERT_OK(table->Find(keys, hints, found, FourThreads()));
    EXPECT_TRUE(found == right);
    ASSERT_OK(table->FindOrInsert(keys, hints, {}, found, FourThreads()));
    EXPECT_TRUE(found == right);
  }
  EXPECT_EQ(table->size(), 1000);
  for (const auto& [key, row] : Export(*table)) EXPECT_EQ(row.count, 51);
}

TEST(Table_GrowsToAMillionKeys) {
  for (bool reserve : {false, true}) {
    TableOptions options = Options("t", 16);
    options.record_counts = false;
    options.initializer.kind = InitializerKind::kUniform;
    const auto table = MakeTable(options);
    constexpr int64_t kKeys = 1 << 20;
    constexpr int64_t kBatch = 1 << 16;
    // Odd multiples: all distinct, in no order.
    std::vector<Key> keys(kKeys);
    for (int64_t i = 0; i < kKeys; ++i) {
      keys[i] =
          static_cast<Key>(static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull);
    }
    std::vector<Address> addresses(kKeys);
    for (int64_t first = 0; first < kKeys; first += kBatch) {
      const Span<const Key> batch(keys.data() + first, kBatch);
      const Span<Address> out(addresses.data() + first, kBatch);
      if (reserve) {
        ASSERT_OK(table->LookAhead(batch, true, out, FourThreads()));
        std::vector<Address> inserted(kBatch);
        const Span<const Address> hints(out.data(), kBatch);
        ASSERT_OK(
            table->FindOrInsert(batch, hints, {}, inserted, FourThreads()));
        EXPECT_TRUE(std::equal(inserted.begin(), inserted.end(), out.begin()));
      } else {
        ASSERT_OK(table->FindOrInsert(batch, {}, {}, out, FourThreads()));
      }
      EXPECT_EQ(table->size(), first + kBatch);
      EXPECT_LE(table->size(), table->capacity());
    }
    // The addresses of the first batch are what they were.
    EXPECT_TRUE(Find(*table, keys, FourThreads()) == addresses);
    EXPECT_TRUE(FindOrInsert(table.get(), keys, FourThreads()) == addresses);
    std::sort(addresses.begin(), addresses.end());
    EXPECT_TRUE(std::adjacent_find(addresses.begin(), addresses.end()) ==
                addresses.end());
    std::vector<Key> missing(100000);
    for (size_t i = 0; i < missing.size(); ++i) missing[i] = keys[i] ^ 1;
    int64_t found = 0;
    for (Address a : Find(*table, missing)) found += a != kNoRow;
    std::vector<Key> sorted = keys;
    std::sort(sorted.begin(), sorted.end());
    int64_t expected = 0;
    for (Key key : missing) {
      expected += std::binary_search(sorted.begin(), sorted.end(), key);
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(table->size(), kKeys);
    EXPECT_EQ(Export(*table, 1 << 14).size(), kKeys);

    // The bounds the design promises: a key and its row, and 15 % on top.
    const MemoryUsage memory = table->memory();
    EXPECT_LT(0, memory.index_bytes);
    EXPECT_LE(kKeys * 16 * 4, memory.row_bytes);
    EXPECT_LE(kKeys * 8, memory.other_bytes);
    const double total = static_cast<double>(
        memory.index_bytes + memory.row_bytes + memory.other_bytes);
    EXPECT_LE(total / kKeys, 1.15 * (8 + 4 * 16));
  }
}

// Sanitizers need address space of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Table_OutOfMemoryIsAnErrorAndNoMore) {
  const auto table = MakeTable(Options("full_table", 256));
  constexpr int64_t kBatch = 2000;
  std::vector<Address> addresses(kBatch);
  const auto first = FindOrInsert(table.get(), KeyRange(0, kBatch));
  const std::vector<float> gradients(kBatch * 256, 1.0f);
  // Room for some more batches, and then no more.
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  struct rlimit limit = before;
  limit.rlim_cur =
      static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (64 << 20));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  Status status;
  int64_t batches = 1;
  for (; batches < 200 && status.ok(); ++batches) {
    status = table->FindOrInsert(KeyRange(batches * kBatch, kBatch), {}, {},
                                 addresses, FourThreads());
  }
  const Status again = table->FindOrInsert(KeyRange(batches * kBatch, kBatch),
                                           {}, {}, addresses, FourThreads());
  const Status slots =
      table->ApplyLazyAdam(first, gradients.data(), {}, Serial());
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_ERROR(status, Code::kResourceExhausted, "full_table");
  EXPECT_ERROR(again, Code::kResourceExhausted, "full_table");
  EXPECT_ERROR(slots, Code::kResourceExhausted, "full_table");
  // What was there is unharmed, and with memory all goes on.
  EXPECT_EQ(table->stride(), 256);
  EXPECT_TRUE(Find(*table, KeyRange(0, kBatch)) == first);
  EXPECT_LE(kBatch * (batches - 1), table->size());
  EXPECT_LE(table->size(), table->capacity());
  EXPECT_EQ(Export(*table).size(), table->size());
  ASSERT_OK(table->ApplyLazyAdam(first, gradients.data(), {}, Serial()));
  // Part of the refused batches may have been inserted.
  const auto all = FindOrInsert(table.get(), KeyRange(0, kBatch * ++batches));
  EXPECT_EQ(table->size(), kBatch * batches);
  EXPECT_EQ(std::set<Address>(all.begin(), all.end()).size(), all.size());
}
#endif

TEST(Table_MemoryGrowsWithSlots) {
  TableOptions options = Options("t", 8);
  options.record_counts = true;
  const auto table = MakeTable(options);
  FindOrInsert(table.get(), KeyRange(0, 100000));
  const MemoryUsage before = table->memory();
  ASSERT_OK(table->ApplyLazyAdam({}, nullptr, {}, Serial()));
  const MemoryUsage after = table->memory();
  EXPECT_LE(3 * 8 * 4 * 100000, after.row_bytes);
  EXPECT_LE(2 * before.row_bytes, after.row_bytes);
  EXPECT_LE(2 * 8 * 100000, after.other_bytes);
}

TEST(Table_ExportKeepsToTheChunkSize) {
  const auto table = MakeTable(Options("t", 5));
  const auto keys = KeyRange(-700, 1500);
  FindOrInsert(table.get(), keys);
  LookAhead(table.get(), KeyRange(10000, 500), true);
  const auto all = Export(*table, 1 << 20);
  EXPECT_EQ(all.size(), 1500);
  for (Key key : keys) {
    ASSERT_TRUE(all.count(key) == 1);
    EXPECT_TRUE(SameBits(all.at(key).row, InitialRow(*table, key)));
    EXPECT_EQ(all.at(key).count, 1);
  }
  for (int64_t chunk_rows : {1, 7, 64, 100, 1499, 1500, 1501}) {
    EXPECT_TRUE(SameBits(Export(*table, chunk_rows), all));
  }
}

TEST(Table_ExportStopsAtAnError) {
  const auto table = MakeTable(Options("t", 5));
  FindOrInsert(table.get(), KeyRange(0, 1000));
  int visits = 0;
  const Status status = table->Export(10, [&](const ExportChunk&) {
    return ++visits == 3 ? Status::ResourceExhausted("disk full")
                         : Status::Ok();
  });
  EXPECT_ERROR(status, Code::kResourceExhausted, "disk full");
  EXPECT_EQ(visits, 3);
  // Nothing stays locked.
  FindOrInsert(table.get(), {5000});
  EXPECT_OK(table->ApplySgd({}, nullptr, {}, Serial()));
}

TEST(Table_AfterReleaseEverythingIsRefused) {
  const auto table = MakeTable(Options("gone_table", 4));
  const auto addresses = FindOrInsert(table.get(), KeyRange(0, 1000));
  ASSERT_OK(table->ApplyLazyAdam({}, nullptr, {}, Serial()));
  table->Release();
  EXPECT_TRUE(table->released());
  std::vector<Key> keys = {1, 2};
  std::vector<Address> two(2);
  std::vector<float> rows(8);
  const Code code = Code::kFailedPrecondition;
  for (int round = 0; round < 2; ++round) {
    EXPECT_ERROR(table->FindOrInsert(keys, {}, {}, two, Serial()), code,
                 "gone_table");
    EXPECT_ERROR(table->Find(keys, {}, two, Serial()), code, "gone_table");
    for (bool reserve : {false, true}) {
      EXPECT_ERROR(table->LookAhead(keys, reserve, two, Serial()), code,
                   "gone_table");
    }
    const Span<const Address> legal(addresses.data(), 2);
    EXPECT_ERROR(table->Gather(legal, nullptr, rows.data(), Serial()), code,
                 "gone_table");
    EXPECT_ERROR(table->ApplySgd(legal, rows.data(), {}, Serial()), code,
                 "gone_table");
    EXPECT_ERROR(table->ApplyLazyAdam(legal, rows.data(), {}, Serial()), code,
                 "gone_table");
    // Empty batches too.
    EXPECT_ERROR(table->FindOrInsert({}, {}, {}, {}, Serial()), code,
                 "gone_table");
    EXPECT_ERROR(table->Gather({}, nullptr, nullptr, Serial()), code,
                 "gone_table");
    EXPECT_ERROR(table->ApplySgd({}, nullptr, {}, Serial()), code,
                 "gone_table");
    EXPECT_ERROR(
        table->Export(10, [](const ExportChunk&) { return Status::Ok(); }),
        code, "gone_table");
    EXPECT_EQ(table->size(), 0);
    EXPECT_EQ(table->capacity(), 0);
    const MemoryUsage memory = table->memory();
    EXPECT_EQ(memory.index_bytes + memory.row_bytes + memory.other_bytes, 0);
    EXPECT_EQ(table->options().name, std::string("gone_table"));
    table->Release();  // twice does no harm
  }
}

TEST(Registry_FindsTheNewestLiveTable) {
  Registry& registry = Registry::Global();
  EXPECT_TRUE(registry.Find("registry_a") == nullptr);
  auto first = MakeTable(Options("registry_a", 1));
  // A table registers itself when it is made, or the caller does it.
  registry.Register(first);
  auto second = MakeTable(Options("registry_a", 2));
  registry.Register(second);
  const auto other = MakeTable(Options("registry_b", 3));
  registry.Register(other);
  EXPECT_TRUE(registry.Find("registry_a") == second);
  EXPECT_TRUE(registry.Find("registry_b") == other);
  EXPECT_TRUE(registry.Find("registry_") == nullptr);
  second->Release();
  EXPECT_TRUE(registry.Find("registry_a") == first);
  second.reset();
  EXPECT_TRUE(registry.Find("registry_a") == first);
  const std::weak_ptr<Table> weak = first;
  first.reset();
  EXPECT_TRUE(weak.expired());  // the registry holds no table
  EXPECT_TRUE(registry.Find("registry_a") == nullptr);
}

TEST(Registry_ReleaseAll) {
  Registry& registry = Registry::Global();
  registry.ReleaseAll();
  EXPECT_EQ(registry.ReleaseAll(), 0);
  const auto a = MakeTable(Options("registry_c", 1));
  const auto b = MakeTable(Options("registry_d", 1));
  auto dead = MakeTable(Options("registry_e", 1));
  for (const auto& table : {a, b, dead}) registry.Register(table);
  dead.reset();
  b->Release();
  EXPECT_EQ(registry.ReleaseAll(), 1);
  EXPECT_TRUE(a->released());
  EXPECT_TRUE(b->released());
  EXPECT_EQ(registry.ReleaseAll(), 0);
  EXPECT_TRUE(registry.Find("registry_c") == nullptr);
}

TEST(Registry_FromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const std::string name = "registry_thread_" + std::to_string(t);
      for (int i = 0; i < 200; ++i) {
        const auto table = MakeTable(Options(name, 1));
        Registry::Global().Register(table);
        EXPECT_TRUE(Registry::Global().Find(name) == table);
        Registry::Global().Find("registry_thread_" + std::to_string(i % 4));
      }
      EXPECT_TRUE(Registry::Global().Find(name) == nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Table_ManySmallTables) {
  // A table costs little before it has rows.
  std::vector<std::shared_ptr<Table>> tables;
  for (int i = 0; i < 300; ++i) {
    tables.push_back(MakeTable(Options("t", 1 + i % 64)));
    FindOrInsert(tables.back().get(), {i, -i - 1});
  }
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(tables[i]->size(), 2);
    EXPECT_LT(0, Find(*tables[i], {i})[0]);
    EXPECT_EQ(Find(*tables[i], {i + 1})[0], kNoRow);
  }
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
