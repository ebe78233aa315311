// Times of the core's operations, per batch of 65,536 ids over 1 M keys: the
// median and the best of the rounds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
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

constexpr int64_t kKeys = 1 << 20;
constexpr int64_t kNewKeys = 2000000;

int rounds = 0;  // of each measurement

struct Times {
  double median;
  double best;
};

// Times of work(round).
Times Measure(const std::function<void(int)>& work) {
  std::vector<double> times;
  for (int round = 0; round < rounds + 2; ++round) {
    const double ms = Milliseconds([&] { work(round); });
    if (round >= 2) times.push_back(ms);  // the first ones warm up
  }
  return {Median(times), *std::min_element(times.begin(), times.end())};
}

void Print(const std::string& what, int threads, Times times, int64_t units) {
  std::printf("  %-42s %d thread%s %8.3f ms, best %8.3f ms %8.1f ns each\n",
              what.c_str(), threads, threads == 1 ? " " : "s", times.median,
              times.best, times.best * 1e6 / units);
}

// Ranks in [0, kKeys) with probability proportional to 1 / (rank + 1)^exponent.
class Zipf {
 public:
  explicit Zipf(double exponent) {
    double sum = 0;
    for (int64_t r = 0; r < kKeys; ++r) {
      sum += std::pow(static_cast<double>(r + 1), -exponent);
      cumulative_.push_back(sum);
    }
  }
  int64_t operator()(Rng* rng) const {
    const double u = static_cast<double>((*rng)() >> 11) * 0x1p-53;
    return std::min<int64_t>(
        kKeys - 1, std::upper_bound(cumulative_.begin(), cumulative_.end(),
                                    u * cumulative_.back()) -
                       cumulative_.begin());
  }

 private:
  std::vector<double> cumulative_;
};

struct Work {
  std::string name;
  std::vector<std::vector<Key>> batches;         // of ids
  std::vector<std::vector<Key>> unique_batches;  // the same, unique
};

Work MakeWork(const std::string& name,
              const std::function<int64_t(Rng*)>& draw_rank) {
  Work work;
  work.name = name;
  Rng rng(7);
  for (int b = 0; b < 16; ++b) {
    std::vector<Key> ids(kBatch);
    for (Key& id : ids) id = KeyOf(draw_rank(&rng));
    std::vector<Key> keys;
    std::vector<int32_t> restore(kBatch);
    std::vector<int32_t> counts;
    Unique<int64_t>(ids, &keys, restore.data(), &counts);
    work.batches.push_back(std::move(ids));
    work.unique_batches.push_back(std::move(keys));
  }
  return work;
}

// What a gather costs at least: the same copies from a table of row pointers,
// prefetched and without any check.
void PlainGather(const std::vector<const float*>& rows, int dim, float* out) {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) {
      const float* next = rows[i + kAhead];
      for (int j = 0; j < dim; j += 16) __builtin_prefetch(next + j);
    }
    std::memcpy(out + i * dim, rows[i], dim * sizeof(float));
  }
}

TableOptions BenchOptions(int dim, InitializerKind kind) {
  TableOptions options = Options("bench", dim);
  options.initializer.kind = kind;
  options.initializer.a = 0;
  options.initializer.b = 0.01;
  options.record_counts = false;
  return options;
}

void BenchUnique(const Work& work) {
  std::vector<Key> keys;
  std::vector<int32_t> restore(kBatch);
  std::vector<int32_t> counts;
  const Times times = Measure([&](int round) {
    Unique<int64_t>(work.batches[round % 16], &keys, restore.data(), &counts);
  });
  Print("Unique, " + std::to_string(keys.size()) + " unique", 1, times, kBatch);
}

void BenchTable(const Work& work, int dim, const Parallel& parallel,
                int threads) {
  const auto table = MakeTable(BenchOptions(dim, InitializerKind::kUniform));
  for (int64_t first = 0; first < kKeys; first += kBatch) {
    std::vector<Key> keys(kBatch);
    for (int64_t i = 0; i < kBatch; ++i) keys[i] = KeyOf(first + i);
    FindOrInsert(table.get(), keys, parallel);
  }
  std::vector<std::vector<Address>> addresses;
  int64_t n = 0;
  for (const auto& keys : work.unique_batches) {
    addresses.push_back(Find(*table, keys));
    n += static_cast<int64_t>(keys.size()) / 16;
  }
  std::vector<Address> out(kBatch);
  const auto out_for = [&out](const std::vector<Key>& keys) {
    return Span<Address>(out.data(), static_cast<int64_t>(keys.size()));
  };
  Print("Find", threads, Measure([&](int round) {
          const auto& keys = work.unique_batches[round % 16];
          EXPECT_OK(table->Find(keys, {}, out_for(keys), parallel));
        }),
        n);
  Print("Find with hints", threads, Measure([&](int round) {
          const auto& keys = work.unique_batches[round % 16];
          EXPECT_OK(table->Find(keys, addresses[round % 16], out_for(keys),
                                parallel));
        }),
        n);
  Print("FindOrInsert, all present", threads, Measure([&](int round) {
          const auto& keys = work.unique_batches[round % 16];
          EXPECT_OK(table->FindOrInsert(keys, {}, {}, out_for(keys), parallel));
        }),
        n);
  Print("FindOrInsert with hints", threads, Measure([&](int round) {
          const auto& keys = work.unique_batches[round % 16];
          EXPECT_OK(table->FindOrInsert(keys, addresses[round % 16], {},
                                        out_for(keys), parallel));
        }),
        n);
  Print("LookAhead, all present", threads, Measure([&](int round) {
          const auto& keys = work.unique_batches[round % 16];
          EXPECT_OK(table->LookAhead(keys, true, out_for(keys), parallel));
        }),
        n);
  // A small batch: 1,000 keys.
  Print("Find of 1,000 keys", threads, Measure([&](int round) {
          const Span<const Key> keys(work.unique_batches[round % 16].data(),
                                     1000);
          EXPECT_OK(
              table->Find(keys, {}, Span<Address>(out.data(), 1000), parallel));
        }),
        1000);

  std::vector<float> rows(kBatch * dim);
  const Times gather = Measure([&](int round) {
    EXPECT_OK(
        table->Gather(addresses[round % 16], nullptr, rows.data(), parallel));
  });
  Print("Gather", threads, gather, n);
  // The plain loop reads rows laid out as a table of the same size would be.
  if (threads == 1) {
    std::vector<float> plain(kKeys * dim, 1.0f);
    std::vector<std::vector<const float*>> pointers;
    for (const auto& batch : addresses) {
      pointers.emplace_back();
      for (Address a : batch) {
        pointers.back().push_back(plain.data() +
                                  int64_t{RowOf(a)} % kKeys * dim);
      }
    }
    Print("  plain loop over row pointers", 1, Measure([&](int round) {
            PlainGather(pointers[round % 16], dim, rows.data());
          }),
          n);
  }
  std::fill(rows.begin(), rows.end(), 1e-3f);
  Print("ApplySgd", threads, Measure([&](int round) {
          EXPECT_OK(table->ApplySgd(addresses[round % 16], rows.data(),
                                    SgdParams{0.01f, 0}, parallel));
        }),
        n);
  Print("ApplyLazyAdam", threads, Measure([&](int round) {
          EXPECT_OK(table->ApplyLazyAdam(addresses[round % 16], rows.data(),
                                         LazyAdamParams{}, parallel));
        }),
        n);
  const auto adagrad = MakeTable(table->options());
  const auto ftrl = MakeTable(table->options());
  std::vector<std::vector<Address>> of_adagrad, of_ftrl;
  for (const auto& keys : work.unique_batches) {
    of_adagrad.push_back(FindOrInsert(adagrad.get(), keys));
    of_ftrl.push_back(FindOrInsert(ftrl.get(), keys));
  }
  Print("ApplyAdagrad", threads, Measure([&](int round) {
          EXPECT_OK(adagrad->ApplyAdagrad(of_adagrad[round % 16], rows.data(),
                                          AdagradParams{}, parallel));
        }),
        n);
  Print("ApplyFtrl", threads, Measure([&](int round) {
          EXPECT_OK(ftrl->ApplyFtrl(of_ftrl[round % 16], rows.data(),
                                    FtrlParams{0.01f}, parallel));
        }),
        n);
  // Ids that were not made unique.
  std::vector<std::vector<Address>> repeated;
  for (const auto& ids : work.batches) repeated.push_back(Find(*table, ids));
  Print("ApplyLazyAdam, repeated addresses", threads, Measure([&](int round) {
          EXPECT_OK(table->ApplyLazyAdam(repeated[round % 16], rows.data(),
                                         LazyAdamParams{}, parallel));
        }),
        kBatch);
}

void BenchNewKeys(int dim, InitializerKind kind, const char* kind_name,
                  bool reserve, const Parallel& parallel, int threads) {
  std::vector<double> totals;
  double slowest_batch = 0;
  MemoryUsage memory;
  std::vector<Key> keys(kBatch);
  std::vector<Address> out(kBatch);
  for (int round = 0; round < 3; ++round) {
    const auto table = MakeTable(BenchOptions(dim, kind));
    double total = 0;
    double slowest = 0;
    for (int64_t first = 0; first < kNewKeys; first += kBatch) {
      const int64_t n = std::min(kBatch, kNewKeys - first);
      for (int64_t i = 0; i < n; ++i) keys[i] = KeyOf(first + i);
      const Span<const Key> batch(keys.data(), n);
      const Span<Address> addresses(out.data(), n);
      const double ms = Milliseconds([&] {
        EXPECT_OK(
            reserve ? table->LookAhead(batch, true, addresses, parallel)
                    : table->FindOrInsert(batch, {}, {}, addresses, parallel));
      });
      total += ms;
      slowest = std::max(slowest, ms);
    }
    if (totals.empty() ||
        total < *std::min_element(totals.begin(), totals.end())) {
      slowest_batch = slowest;
    }
    totals.push_back(total);
    memory = table->memory();
  }
  std::sort(totals.begin(), totals.end());
  const double bytes =
      static_cast<double>(memory.index_bytes + memory.row_bytes +
                          memory.other_bytes) /
      kNewKeys;
  Print(std::string(reserve ? "LookAhead reserve" : "FindOrInsert") +
            ", new keys, " + kind_name,
        threads, {totals[1], totals[0]}, kNewKeys);
  std::printf(
      "    slowest batch %.2f ms; %.1f bytes per key (index %.1f, rows %.1f, "
      "other %.1f): %.3f of key and row\n",
      slowest_batch, bytes, 1.0 * memory.index_bytes / kNewKeys,
      1.0 * memory.row_bytes / kNewKeys, 1.0 * memory.other_bytes / kNewKeys,
      bytes / (8 + 4 * dim));
}

}  // namespace

void BenchOperations(int rounds_of_each) {
  rounds = rounds_of_each;
  const ThreadPool two(2);
  const Zipf zipf(1.05);
  const Work works[] = {
      MakeWork("uniform", [](Rng* rng) { return Below(rng, kKeys); }),
      MakeWork("Zipf(1.05)", [&](Rng* rng) { return zipf(rng); }),
  };
  for (const Work& work : works) {
    std::printf("%s\n", work.name.c_str());
    BenchUnique(work);
    for (int dim : {16, 64}) {
      std::printf(" dim %d\n", dim);
      BenchTable(work, dim, Serial(), 1);
      BenchTable(work, dim, two, 2);
    }
  }
  for (int dim : {16, 64}) {
    std::printf("new keys, dim %d\n", dim);
    for (int threads : {1, 2}) {
      const Parallel& parallel =
          threads == 1 ? Serial() : static_cast<const Parallel&>(two);
      BenchNewKeys(dim, InitializerKind::kUniform, "uniform", false, parallel,
                   threads);
      BenchNewKeys(dim, InitializerKind::kTruncatedNormal, "truncated normal",
                   false, parallel, threads);
      BenchNewKeys(dim, InitializerKind::kUniform, "uniform", true, parallel,
                   threads);
    }
  }
}

}  // namespace testing
}  // namespace mxrec
