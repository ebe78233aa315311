// What the core's gather and find reach of the limit that the memory sets:
// plain loops with prefetching over the same rows and keys, in turn with the
// core in one process, so that noise hits both alike.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_utils.h"
#include "mxrec/table.h"
#include "tests/table_utils.h"
#include "tests/testing.h"
#include "tests/thread_pool.h"

namespace mxrec {
namespace testing {
namespace {

constexpr int kDim = 16;  // a row is a cache line
constexpr int kBatches = 32;
constexpr int kDistances[] = {8, 16, 32};  // of prefetching, in elements

// Memory of huge pages, zeroed.
template <typename T>
class HugeArray {
 public:
  explicit HugeArray(int64_t size) : bytes_(size * sizeof(T)) {
    void* area = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(area != MAP_FAILED);
    madvise(area, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<T*>(area);
  }
  ~HugeArray() { munmap(data_, bytes_); }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;
  T* data() const { return data_; }

 private:
  size_t bytes_;
  T* data_ = nullptr;
};

struct Line {
  float values[kDim];
};

// Copies of lines, without any check.
void PlainGather(const Line* table, const uint32_t* rows, int64_t n, int ahead,
                 Line* out) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) __builtin_prefetch(table + rows[i + ahead], 0, 3);
    out[i] = table[rows[i]];
  }
}

// The simplest hash table there is: 16-byte slots, linear probing, two thirds
// full at most, no deletion, one thread, and every key is there.
class PlainIndex {
 public:
  explicit PlainIndex(int64_t keys) : bits_(BitsFor(keys)), slots_(1 << bits_) {
    for (int64_t row = 0; row < keys; ++row) {
      const Key key = KeyOf(row + 1);
      uint64_t at = Home(key);
      while (slots_.data()[at].key != 0) at = Next(at);
      slots_.data()[at] = {key, row};
    }
  }
  void Find(const Key* keys, int64_t n, int ahead, Address* rows) const {
    const Slot* slots = slots_.data();
    for (int64_t i = 0; i < n; ++i) {
      if (i + ahead < n) __builtin_prefetch(slots + Home(keys[i + ahead]));
      uint64_t at = Home(keys[i]);
      while (slots[at].key != keys[i]) at = Next(at);
      rows[i] = slots[at].row;
    }
  }

 private:
  struct Slot {
    Key key;  // 0: empty
    int64_t row;
  };

  static int BitsFor(int64_t keys) {
    int bits = 1;
    while ((int64_t{1} << bits) * 2 < keys * 3) ++bits;
    return bits;
  }
  uint64_t Home(Key key) const {
    uint64_t x = static_cast<uint64_t>(key);
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return x >> (64 - bits_);
  }
  uint64_t Next(uint64_t at) const {
    return (at + 1) & ((uint64_t{1} << bits_) - 1);
  }

  const int bits_;
  const HugeArray<Slot> slots_;
};

// A way to do the work of a batch, and the ns per key of each round.
struct Candidate {
  std::function<void(int)> run;
  std::vector<double> times;
};

void Interleave(int rounds, const std::vector<Candidate*>& candidates) {
  for (int round = 0; round < rounds; ++round) {
    for (Candidate* candidate : candidates) {
      // The first pass fills the caches with what this candidate reads.
      double ms = 0;
      for (int pass = 0; pass < 2; ++pass) {
        ms = Milliseconds([&] {
          for (int b = 0; b < kBatches; ++b) candidate->run(b);
        });
      }
      candidate->times.push_back(ms * 1e6 / kBatches / kBatch);
    }
  }
}

void PrintRow(const char* what, int64_t keys, const Candidate& core_two,
              const Candidate& core, const std::vector<Candidate>& plain) {
  size_t best = 0;
  for (size_t i = 1; i < plain.size(); ++i) {
    if (Median(plain[i].times) < Median(plain[best].times)) best = i;
  }
  const double limit = Median(plain[best].times);
  const double one = Median(core.times);
  const double two = Median(core_two.times);
  std::printf(
      "| %s | %lld | %.1f (%d ahead) | %.1f | %.0f %% | %.1f | %.2f |\n", what,
      static_cast<long long>(keys), limit, kDistances[best], one,
      100 * limit / one, two, one / two);
}

void BenchKeys(int64_t keys, int rounds, const Parallel& two_threads) {
  TableOptions options = Options("limits", kDim);
  options.initializer.kind = InitializerKind::kConstant;
  options.record_counts = false;
  const auto table = MakeTable(options);
  std::vector<Key> some;
  for (int64_t first = 0; first < keys; first += kBatch) {
    some.resize(std::min(kBatch, keys - first));
    for (size_t i = 0; i < some.size(); ++i) some[i] = KeyOf(first + i + 1);
    FindOrInsert(table.get(), some, two_threads);
  }

  Rng rng(7);
  std::vector<std::vector<Key>> batches(kBatches);
  std::vector<std::vector<Address>> addresses(kBatches);
  std::vector<std::vector<uint32_t>> rows(kBatches);
  for (int b = 0; b < kBatches; ++b) {
    batches[b].resize(kBatch);
    for (Key& key : batches[b]) key = KeyOf(Below(&rng, keys) + 1);
    addresses[b] = Find(*table, batches[b]);
    for (const Address address : addresses[b]) {
      rows[b].push_back(RowOf(address));
    }
  }

  std::vector<Address> found(kBatch);
  std::vector<Line> out(kBatch);
  float* floats = out[0].values;
  const auto find = [&](const Parallel& parallel) {
    return Candidate{
        [&](int b) { EXPECT_OK(table->Find(batches[b], {}, found, parallel)); },
        {}};
  };
  const auto find_hinted = [&](const Parallel& parallel) {
    return Candidate{
        [&](int b) {
          EXPECT_OK(table->Find(batches[b], addresses[b], found, parallel));
        },
        {}};
  };
  const auto gather = [&](const Parallel& parallel) {
    return Candidate{
        [&](int b) {
          EXPECT_OK(table->Gather(addresses[b], nullptr, floats, parallel));
        },
        {}};
  };
  const auto measure = [&](const char* what, Candidate one, Candidate two,
                           std::vector<Candidate>* plain) {
    std::vector<Candidate*> all = {&one, &two};
    for (Candidate& candidate : *plain) all.push_back(&candidate);
    Interleave(rounds, all);
    PrintRow(what, keys, two, one, *plain);
  };

  {
    const HugeArray<Line> lines(table->capacity());
    std::memset(static_cast<void*>(lines.data()), 0,
                table->capacity() * sizeof(Line));
    std::vector<Candidate> plain;
    for (const int ahead : kDistances) {
      plain.push_back({[&, ahead](int b) {
                         PlainGather(lines.data(), rows[b].data(), kBatch,
                                     ahead, out.data());
                       },
                       {}});
    }
    measure("gather", gather(Serial()), gather(two_threads), &plain);
  }
  const PlainIndex index(keys);
  std::vector<Candidate> plain;
  for (const int ahead : kDistances) {
    plain.push_back({[&, ahead](int b) {
                       index.Find(batches[b].data(), kBatch, ahead,
                                  found.data());
                     },
                     {}});
  }
  measure("find", find(Serial()), find(two_threads), &plain);
  for (Candidate& candidate : plain) candidate.times.clear();
  measure("find with hints", find_hinted(Serial()), find_hinted(two_threads),
          &plain);
}

}  // namespace

void BenchLimits(int rounds) {
  const ThreadPool two_threads(2);
  std::printf(
      "\n**the core beside a plain loop that prefetches, batches of 65,536 "
      "uniform ids, rows of 64 bytes, ns per id**\n\n"
      "| what | keys | plain loop, 1 thread | core, 1 thread | of the plain "
      "loop's rate | core, 2 threads | 1 -> 2 threads |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const int64_t keys : {1000000, 10000000}) {
    BenchKeys(keys, std::max(1, rounds / 4), two_threads);
  }
}

}  // namespace testing
}  // namespace mxrec
