// Which keys get a row, and what is known of those that have none.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "mxrec/shared_counts.h"
#include "mxrec/table.h"
#include "src/candidates.h"
#include "src/shard_index.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

std::shared_ptr<Table> MakeAdmitting(const AdmissionOptions& admission,
                                     int64_t capacity = 0) {
  TableOptions options = Options("admitting", 3);
  options.admission = admission;
  options.fixed_capacity = capacity;
  return MakeTable(options);
}

std::shared_ptr<Table> MakeAdmitting(int64_t threshold) {
  AdmissionOptions admission;
  admission.access_threshold = threshold;
  return MakeAdmitting(admission);
}

std::vector<bool> Admitted(Table* table, const std::vector<Key>& keys,
                           const Occurrences& seen = {},
                           const std::vector<Address>& hints = {}) {
  std::vector<Address> addresses(keys.size(), -1);
  ASSERT_OK(table->FindOrAdmit(keys, hints, seen, addresses, Serial()));
  std::vector<bool> admitted;
  for (const Address address : addresses) admitted.push_back(address != kNoRow);
  return admitted;
}

std::map<Key, std::pair<int64_t, int64_t>> CandidatesOf(
    const Table& table, int64_t chunk_size = 7) {
  std::map<Key, std::pair<int64_t, int64_t>> all;
  EXPECT_OK(
      table.ExportCandidates(chunk_size, [&](const CandidateChunk& chunk) {
        EXPECT_LE(chunk.keys.size(), chunk_size);
        for (int64_t i = 0; i < chunk.keys.size(); ++i) {
          const auto entry = std::make_pair(chunk.counts[i], chunk.times[i]);
          EXPECT_TRUE(all.emplace(chunk.keys[i], entry).second);
        }
        return Status::Ok();
      }));
  return all;
}

TEST(Admission_TheBatchIsCountedBeforeKeysAreAdmitted) {
  const auto a = MakeAdmitting(2);
  // Keys repeat in the call; their occurrences before the one that reaches the
  // threshold are admitted too.
  Occurrences seen;
  const std::vector<int32_t> counts_a1 = {1, 2, 1, 3, 1, 1, 4, 1};
  seen.counts = counts_a1;
  EXPECT_TRUE(Admitted(a.get(), {11, 11, 33, 44, 11, 55, 88, 55}, seen) ==
              (std::vector<bool>{1, 1, 0, 1, 1, 1, 1, 1}));
  const std::vector<int32_t> counts_a2 = {1, 2, 1, 1, 2, 3};
  seen.counts = counts_a2;
  EXPECT_TRUE(Admitted(a.get(), {11, 12, 33, 21, 11, 12}, seen) ==
              (std::vector<bool>{1, 1, 1, 0, 1, 1}));
  const auto b = MakeAdmitting(3);
  const std::vector<int32_t> counts_b1 = {1, 2, 1, 1, 2};
  seen.counts = counts_b1;
  EXPECT_TRUE(Admitted(b.get(), {123, 121, 121, 212, 211}, seen) ==
              (std::vector<bool>{0, 1, 1, 0, 0}));
  const std::vector<int32_t> counts_b2 = {1, 2, 1, 3, 1};
  seen.counts = counts_b2;
  EXPECT_TRUE(Admitted(b.get(), {125, 121, 122, 212, 211}, seen) ==
              (std::vector<bool>{0, 1, 0, 1, 1}));
  EXPECT_EQ(b->size(), 3);
  EXPECT_EQ(CandidatesOf(*b).size(), 3);
  EXPECT_EQ(Export(*b).at(212).count, 4);  // moved along with its key
}

TEST(Admission_KeysWithoutARowCostNone) {
  const auto table = MakeAdmitting(3);
  const auto keys = KeyRange(0, 50000);
  for (int round = 0; round < 2; ++round) Admitted(table.get(), keys);
  EXPECT_EQ(table->size(), 0);
  EXPECT_EQ(table->memory().row_bytes, 0);
  // Nor do look-aheads, whatever they ask for.
  const auto hints = LookAhead(table.get(), keys, true);
  EXPECT_EQ(std::count(hints.begin(), hints.end(), kNoRow), 50000);
  EXPECT_EQ(table->memory().row_bytes, 0);
  EXPECT_EQ(table->eviction_stats().candidates, 50000);
  EXPECT_LE(table->memory().other_bytes, 50000 * 64);
  Admitted(table.get(), keys, {}, hints);
  EXPECT_EQ(table->size(), 50000);
  EXPECT_EQ(table->eviction_stats().candidates, 0);
}

TEST(Admission_ThresholdsOfZeroAndOne) {
  for (const int64_t threshold : {0, 1}) {
    const auto table = MakeAdmitting(threshold);
    const auto admitted = Admitted(table.get(), {1, 2, 1});
    EXPECT_TRUE(admitted == (std::vector<bool>{1, 1, 1}));
    EXPECT_EQ(Export(*table).at(1).count, threshold == 0 ? 0 : 2);
    EXPECT_EQ(table->admission_state().is_frozen, threshold == 0);
  }
}

TEST(Admission_FrozenCountsStayAndResume) {
  const auto table = MakeAdmitting(3);
  Admitted(table.get(), {1, 2, 2, 3, 3, 3});
  int64_t in_force = -5;
  EXPECT_OK(table->SetAccessThreshold(0, &in_force));
  EXPECT_EQ(in_force, 3);
  EXPECT_TRUE(Admitted(table.get(), {1, 2, 2, 3, 4, 4, 4, 4}) ==
              (std::vector<bool>{0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(Export(*table).at(3).count, 3);
  EXPECT_EQ(CandidatesOf(*table).size(), 2);  // 4 is not worth remembering
  EXPECT_OK(table->SetAccessThreshold(2, &in_force));
  EXPECT_EQ(in_force, 2);
  EXPECT_TRUE(Admitted(table.get(), {4, 2, 1}) == (std::vector<bool>{0, 1, 1}));
  // Who has a row keeps it.
  EXPECT_OK(table->SetAccessThreshold(100, &in_force));
  EXPECT_TRUE(Admitted(table.get(), {1, 2, 3, 5}) ==
              (std::vector<bool>{1, 1, 1, 0}));
  EXPECT_ERROR(table->SetAccessThreshold(-1, &in_force), Code::kInvalidArgument,
               "admitting");
  EXPECT_ERROR(MakeTable(Options("none", 2))->SetAccessThreshold(1, &in_force),
               Code::kFailedPrecondition, "access_threshold");
}

TEST(Admission_CountsDoNotOverflow) {
  const auto table = MakeAdmitting(5);
  Occurrences seen;
  const std::vector<int32_t> most = {INT32_MAX, INT32_MAX, INT32_MAX,
                                     INT32_MAX};
  seen.counts = most;
  seen.coefficient = INT32_MAX;
  EXPECT_TRUE(Admitted(table.get(), {7, 7, 7, 7}, seen) ==
              (std::vector<bool>{1, 1, 1, 1}));
  EXPECT_EQ(Export(*table).at(7).count, INT64_MAX);
  seen.coefficient = int64_t{INT32_MAX} + 1;
  std::vector<Address> out(4);
  EXPECT_ERROR(
      table->FindOrAdmit(std::vector<Key>{7, 7, 7, 7}, {}, seen, out, Serial()),
      Code::kInvalidArgument, "coefficient");
}

TEST(Admission_FindNeverCounts) {
  const auto table = MakeAdmitting(2);
  Admitted(table.get(), {1});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Find(*table, {1})[0], kNoRow);
    EXPECT_EQ(Find(*table, {2})[0], kNoRow);
  }
  EXPECT_EQ(CandidatesOf(*table).at(1).first, 1);
  EXPECT_EQ(CandidatesOf(*table).size(), 1);
}

TEST(Admission_AFullTableKeepsTheCount) {
  AdmissionOptions admission;
  admission.access_threshold = 2;
  const auto table = MakeAdmitting(admission, 1);
  Admitted(table.get(), {1, 1});
  std::vector<Address> out(2);
  EXPECT_ERROR(
      table->FindOrInsert(std::vector<Key>{2, 2}, {}, {}, out, Serial()),
      Code::kResourceExhausted, "admitting");
  EXPECT_EQ(CandidatesOf(*table).at(2).first, 2);
  EXPECT_TRUE(Admitted(table.get(), {3}) == (std::vector<bool>{0}));
}

TEST(Admission_SharedCountsAreSums) {
  AdmissionOptions admission;
  admission.access_threshold = 3;
  admission.record_times = true;
  admission.shared_counts = std::make_shared<SharedCounts>();
  const auto a = MakeAdmitting(admission);
  admission.access_threshold = 4;
  const auto b = MakeAdmitting(admission);
  Admitted(a.get(), {1, 1});
  EXPECT_TRUE(Admitted(b.get(), {1}) == (std::vector<bool>{0}));
  EXPECT_TRUE(Admitted(a.get(), {1}) == (std::vector<bool>{1}));
  EXPECT_EQ(admission.shared_counts->Get(1), 4);
  EXPECT_EQ(Export(*a).at(1).count, 3);  // its own part
  EXPECT_TRUE(Admitted(b.get(), {1}) == (std::vector<bool>{1}));
  // What a table evicts it takes back, and nothing of the other's.
  Evicted evicted;
  EXPECT_OK(a->Evict(0, &evicted));
  EXPECT_EQ(evicted.keys, 1);
  EXPECT_EQ(admission.shared_counts->Get(1), 2);
  EXPECT_EQ(b->size(), 1);
  EXPECT_TRUE(Admitted(a.get(), {1}) == (std::vector<bool>{1}));  // 2 + 1
}

TEST(Admission_StateAndCandidatesGoToAnotherTable) {
  AdmissionOptions admission;
  admission.access_threshold = 4;
  admission.record_times = true;
  const auto from = MakeAdmitting(admission);
  Occurrences seen;
  const std::vector<int64_t> times = {50, 60, 70};
  seen.times = times;
  Admitted(from.get(), {1, 2, 3}, seen);
  int64_t in_force = 0;
  EXPECT_OK(from->SetAccessThreshold(2, &in_force));
  EXPECT_OK(from->SetAccessThreshold(0, &in_force));
  const auto to = MakeAdmitting(admission);
  EXPECT_OK(to->SetAdmissionState(from->admission_state()));
  EXPECT_OK(from->ExportCandidates(2, [&](const CandidateChunk& chunk) {
    return to->RestoreCandidates(chunk);
  }));
  EXPECT_TRUE(CandidatesOf(*to) == CandidatesOf(*from));
  EXPECT_TRUE(CandidatesOf(*to).at(2) ==
              std::make_pair(int64_t{1}, int64_t{60}));
  EXPECT_EQ(to->admission_state().access_threshold, 2);
  EXPECT_TRUE(to->admission_state().is_frozen);
  EXPECT_EQ(to->admission_state().newest_time, 70);
  EXPECT_ERROR(
      MakeTable(Options("none", 2))->SetAdmissionState(from->admission_state()),
      Code::kInvalidArgument, "none");
}

// The rules of docs/faae.md, as plainly as they can be said.
struct Model {
  struct Entry {
    int64_t count = 0;
    int64_t time = 0;
    bool has_row = false;
  };
  std::map<Key, Entry> entries;
  int64_t threshold;
  bool frozen = false;
  int64_t newest = 0;

  std::vector<bool> See(const std::vector<Key>& keys, const Occurrences& seen) {
    for (const int64_t time : seen.times) newest = std::max(newest, time);
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t added =
          frozen
              ? 0
              : seen.coefficient * (seen.counts.empty() ? 1 : seen.counts[i]);
      // What counts nothing makes no key known.
      if (added == 0 && entries.count(keys[i]) == 0) continue;
      Entry& entry = entries[keys[i]];
      entry.count += added;
      const int64_t time = seen.times.empty()       ? newest
                           : seen.times.size() == 1 ? seen.times[0]
                                                    : seen.times[i];
      entry.time = std::max(entry.time, time);
    }
    std::vector<bool> admitted;
    for (const Key key : keys) {
      const auto found = entries.find(key);
      if (found == entries.end()) {
        admitted.push_back(false);
        continue;
      }
      found->second.has_row |= found->second.count >= threshold;
      admitted.push_back(found->second.has_row);
    }
    return admitted;
  }

  void Evict(int64_t age) {
    for (auto i = entries.begin(); i != entries.end();) {
      i = newest - i->second.time >= age ? entries.erase(i) : std::next(i);
    }
  }
};

void CompareWithModel(int64_t capacity, const Parallel& parallel,
                      uint64_t seed) {
  AdmissionOptions admission;
  admission.access_threshold = 4;
  admission.record_times = true;
  const auto table = MakeAdmitting(admission, capacity);
  Model model;
  model.threshold = 4;
  Rng rng(seed);
  std::vector<Address> stale(400, kNoRow);
  int64_t now = 1000;
  for (int step = 0; step < 400; ++step) {
    std::vector<Key> keys;
    std::vector<Address> hints;
    std::vector<int32_t> counts;
    std::vector<int64_t> times;
    const int64_t n = Below(&rng, 60);
    const bool repeats = Below(&rng, 2) == 0;
    now += Below(&rng, 10);
    for (int64_t i = 0; i < n; ++i) {
      const Key key = Below(&rng, 400);
      if (!repeats && std::find(keys.begin(), keys.end(), key) != keys.end()) {
        continue;
      }
      keys.push_back(key);
      hints.push_back(stale[Below(&rng, 3) == 0 ? Below(&rng, 400) : key]);
      counts.push_back(static_cast<int32_t>(Below(&rng, 3)));
      times.push_back(std::max<int64_t>(0, now - Below(&rng, 40)));
    }
    Occurrences seen;
    if (Below(&rng, 3) != 0) seen.counts = counts;
    seen.coefficient = 1 + Below(&rng, 2);
    if (Below(&rng, 3) == 0) {
      seen.times = times;
    } else if (Below(&rng, 2) == 0) {
      times.assign(1, now);
      seen.times = times;
    }
    if (seen.counts.size() != static_cast<int64_t>(keys.size()))
      seen.counts = {};
    if (Below(&rng, 2) == 0) hints.clear();
    std::vector<Address> addresses(keys.size(), -1);
    ASSERT_OK(table->FindOrAdmit(keys, hints, seen, addresses, parallel));
    const auto expected = model.See(keys, seen);
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(addresses[i] != kNoRow, static_cast<bool>(expected[i]));
      stale[keys[i]] = addresses[i];
    }
    if (Below(&rng, 8) == 0) {
      const int64_t age = Below(&rng, 60);
      Evicted evicted;
      EXPECT_OK(table->Evict(age, &evicted));
      model.Evict(age);
    }
    if (Below(&rng, 25) == 0) {
      const int64_t threshold = Below(&rng, 7);
      int64_t in_force = -1;
      EXPECT_OK(table->SetAccessThreshold(threshold, &in_force));
      model.frozen = threshold == 0;
      if (threshold > 0) model.threshold = threshold;
      EXPECT_EQ(in_force, model.threshold);
    }
    if (step % 20 != 0) continue;
    const auto rows = Export(*table);
    const auto candidates = CandidatesOf(*table);
    EXPECT_EQ(rows.size() + candidates.size(), model.entries.size());
    EXPECT_EQ(rows.size(), table->size());
    for (const auto& [key, entry] : model.entries) {
      if (entry.has_row) {
        ASSERT_TRUE(rows.count(key) == 1);
        EXPECT_EQ(rows.at(key).count, entry.count);
        EXPECT_EQ(rows.at(key).time, entry.time);
      } else {
        ASSERT_TRUE(candidates.count(key) == 1);
        EXPECT_EQ(candidates.at(key).first, entry.count);
        EXPECT_EQ(candidates.at(key).second, entry.time);
      }
    }
  }
}

TEST(Admission_IsThatOfAPlainModel) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    CompareWithModel(0, seed % 2 == 0 ? Serial() : FourThreads(), seed);
    CompareWithModel(500, seed % 2 == 0 ? FourThreads() : Serial(), seed);
  }
}

TEST(Candidates_AreThoseOfAMap) {
  Rng rng(3);
  Candidates candidates;
  std::unordered_map<Key, int64_t> model;
  for (int step = 0; step < 20000; ++step) {
    const Key key = Below(&rng, step < 10000 ? 3000 : 300);
    const uint64_t hash = HashKey(key);
    switch (Below(&rng, 3)) {
      case 0:
        ++candidates.FindOrAdd(hash, key)->count;
        ++model[key];
        break;
      case 1:
        if (Candidates::Entry* const entry = candidates.Find(hash, key)) {
          candidates.Erase(entry);
        }
        model.erase(key);
        break;
      case 2: {
        const auto* const entry = candidates.Find(hash, key);
        const auto found = model.find(key);
        ASSERT_EQ(entry != nullptr ? entry->count : -1,
                  found != model.end() ? found->second : -1);
        break;
      }
    }
    if (step % 3000 == 2999) {
      const auto goes = [](Key key, int64_t count) {
        return (key + count) % 3 == 0;
      };
      int64_t erased = 0;
      for (int64_t at = 0; at < candidates.slots(); at += 100) {
        erased += candidates.EraseIf(
            at, std::min(candidates.slots(), at + 100),
            [&](const Candidates::Entry& e) { return goes(e.key, e.count); });
      }
      const int64_t before = static_cast<int64_t>(model.size());
      for (auto i = model.begin(); i != model.end();) {
        i = goes(i->first, i->second) ? model.erase(i) : std::next(i);
      }
      EXPECT_EQ(erased, before - static_cast<int64_t>(model.size()));
      candidates.Trim();
    }
    EXPECT_EQ(candidates.size(), model.size());
  }
  int64_t visited = 0;
  candidates.ForEach([&](const Candidates::Entry& entry) {
    EXPECT_EQ(model.at(entry.key), entry.count);
    ++visited;
  });
  EXPECT_EQ(visited, model.size());
}

TEST(ShardIndex_ErasedKeysLeaveNoTrace) {
  RowStore rows("index", 1, false, false, 0);
  ASSERT_OK(rows.Init());
  RowIndex first = 0;
  ASSERT_OK(rows.Allocate(4000, &first));
  ShardIndex index(0);
  std::unordered_map<Key, RowIndex> model;
  std::vector<RowIndex> free;
  for (RowIndex row = 0; row < 4000; ++row) free.push_back(first + row);
  Rng rng(5);
  for (int step = 0; step < 60000; ++step) {
    const Key key = Below(&rng, 6000);
    const uint64_t hash = HashKey(key);
    RowIndex row = 0;
    const auto found = model.find(key);
    ASSERT_EQ(index.Find(hash, key, rows, &row), found != model.end());
    if (found != model.end()) {
      ASSERT_EQ(row, found->second);
      index.Erase(hash, row);
      free.push_back(row);
      model.erase(found);
    } else if (!free.empty()) {
      row = free.back();
      free.pop_back();
      *rows.KeyOf(row) = key;
      ASSERT_TRUE(index.Reserve(rows));
      index.Insert(hash, row);
      model[key] = row;
    }
    EXPECT_EQ(index.size(), model.size());
  }
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
