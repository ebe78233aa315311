// What the table's tests share.
#ifndef MXREC_TESTS_TABLE_UTILS_H_
#define MXREC_TESTS_TABLE_UTILS_H_

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/table.h"
#include "tests/testing.h"
#include "tests/thread_pool.h"

namespace mxrec {
namespace testing {

using Rng = std::mt19937_64;

inline const Parallel& Serial() {
  static const SerialParallel serial;
  return serial;
}

inline const Parallel& FourThreads() {
  static const ThreadPool pool(4, ThreadPool::Split::kAlways);
  return pool;
}

// Uniform integer in [0, n).
inline int64_t Below(Rng* rng, int64_t n) {
  return static_cast<int64_t>((*rng)() % static_cast<uint64_t>(n));
}

inline float UniformFloat(Rng* rng, float low, float high) {
  return low + (high - low) * static_cast<float>((*rng)() >> 40) / (1 << 24);
}

inline TableOptions Options(const std::string& name, int dim) {
  TableOptions options;
  options.name = name;
  options.dim = dim;
  options.initializer.kind = InitializerKind::kUniform;
  options.initializer.a = -1;
  options.initializer.b = 1;
  options.initializer.seed = 17;
  return options;
}

inline std::shared_ptr<Table> MakeTable(const TableOptions& options) {
  std::shared_ptr<Table> table;
  ASSERT_OK(Table::Create(options, &table));
  ASSERT_TRUE(table != nullptr);
  return table;
}

inline std::shared_ptr<void> BeginStep(Table* table) {
  std::shared_ptr<void> step;
  EXPECT_OK(table->BeginStep(&step));
  return step;
}

inline std::vector<Address> FindOrInsert(Table* table,
                                         const std::vector<Key>& keys,
                                         const Parallel& parallel = Serial()) {
  std::vector<Address> addresses(keys.size(), -1);
  ASSERT_OK(table->FindOrInsert(keys, {}, {}, addresses, parallel));
  return addresses;
}

inline std::vector<Address> Find(const Table& table,
                                 const std::vector<Key>& keys,
                                 const Parallel& parallel = Serial()) {
  std::vector<Address> addresses(keys.size(), -1);
  ASSERT_OK(table.Find(keys, {}, addresses, parallel));
  return addresses;
}

inline std::vector<Address> LookAhead(Table* table,
                                      const std::vector<Key>& keys,
                                      bool reserve) {
  std::vector<Address> hints(keys.size(), -1);
  ASSERT_OK(table->LookAhead(keys, reserve, hints, Serial()));
  return hints;
}

inline std::vector<float> Gather(const Table& table,
                                 const std::vector<Address>& addresses,
                                 const float* default_row = nullptr,
                                 const Parallel& parallel = Serial()) {
  std::vector<float> out(addresses.size() * table.options().dim, -123.0f);
  ASSERT_OK(table.Gather(addresses, default_row, out.data(), parallel));
  return out;
}

// The initial row of `key` by the table's own options.
inline std::vector<float> InitialRow(const Table& table, Key key) {
  std::vector<float> row(table.options().dim);
  Initializer(table.options().initializer, table.options().dim)
      .Fill(key, row.data());
  return row;
}

struct ExportedRow {
  std::vector<float> row;
  int64_t count = 0;
  int64_t time = 0;
};

// Everything Export gives. Fails on a repeated key or a chunk out of shape.
inline std::map<Key, ExportedRow> Export(const Table& table,
                                         int64_t chunk_rows = 1000) {
  std::map<Key, ExportedRow> all;
  EXPECT_OK(table.Export(chunk_rows, [&](const ExportChunk& chunk) {
    const int64_t n = chunk.keys.size();
    const int64_t stride =
        table.options().dim > 0 && n > 0 ? chunk.rows.size() / n : 0;
    EXPECT_LE(n, chunk_rows);
    EXPECT_EQ(chunk.rows.size(), n * stride);
    if (table.options().record_counts) EXPECT_EQ(chunk.counts.size(), n);
    for (int64_t i = 0; i < n; ++i) {
      ExportedRow exported;
      exported.row.assign(chunk.rows.data() + i * stride,
                          chunk.rows.data() + (i + 1) * stride);
      if (i < chunk.counts.size()) exported.count = chunk.counts[i];
      if (i < chunk.times.size()) exported.time = chunk.times[i];
      EXPECT_TRUE(all.emplace(chunk.keys[i], std::move(exported)).second);
    }
    return Status::Ok();
  }));
  return all;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline bool SameBits(const std::map<Key, ExportedRow>& a,
                     const std::map<Key, ExportedRow>& b) {
  if (a.size() != b.size()) return false;
  for (auto i = a.begin(), j = b.begin(); i != a.end(); ++i, ++j) {
    if (i->first != j->first || i->second.count != j->second.count ||
        !SameBits(i->second.row, j->second.row)) {
      return false;
    }
  }
  return true;
}

inline std::vector<float> RandomGradients(Rng* rng, int64_t rows, int dim) {
  std::vector<float> gradients(rows * dim);
  for (float& g : gradients) g = UniformFloat(rng, -1, 1);
  return gradients;
}

// [start, start + n)
inline std::vector<Key> KeyRange(Key start, int64_t n) {
  std::vector<Key> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = start + i;
  return keys;
}

}  // namespace testing
}  // namespace mxrec

#endif  // MXREC_TESTS_TABLE_UTILS_H_
