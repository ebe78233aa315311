// What the ops over several tables share: one op does the work of N ops, each
// table exactly as by its own op.
#ifndef MXREC_OPS_MANY_UTILS_H_
#define MXREC_OPS_MANY_UTILS_H_

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "op_utils.h"

namespace mxrec_ops {

// Rough cycles for one key of one table: an access or two to memory.
constexpr int64_t kManyCostPerKey = 100;
// A table with fewer keys is always worked on by one thread.
constexpr int64_t kManyMinParallelKeys = 8192;

// Runs work(i, parallel) for every i, several tables at a time and each table
// by one thread. A table with more than its thread's share of the keys comes
// first, alone, on all threads. All tables are worked on whatever the others
// return, as independent ops are; the first error in order is returned.
inline tensorflow::Status ForEachTable(
    tensorflow::OpKernelContext* context, const std::vector<int64_t>& keys,
    const std::function<tensorflow::Status(int, const mxrec::Parallel&)>&
        work) {
  const int n = static_cast<int>(keys.size());
  const TfParallel all_threads(context);
  int64_t total = 0;
  for (const int64_t count : keys) total += count;
  const int64_t share =
      std::max(total / all_threads.threads(), kManyMinParallelKeys);
  std::vector<tensorflow::Status> status(n);
  std::vector<int> small;
  small.reserve(n);
  for (int i = 0; i < n; ++i) {
    if (keys[i] > share) {
      status[i] = work(i, all_threads);
      total -= keys[i];
    } else {
      small.push_back(i);
    }
  }
  const int64_t count = static_cast<int64_t>(small.size());
  all_threads.For(count,
                  (total / std::max<int64_t>(count, 1) + 1) * kManyCostPerKey,
                  [&](int64_t begin, int64_t end) {
                    const mxrec::SerialParallel serial;
                    for (int64_t i = begin; i < end; ++i) {
                      status[small[i]] = work(small[i], serial);
                    }
                  });
  for (const tensorflow::Status& each : status) TF_RETURN_IF_ERROR(each);
  return tensorflow::Status();
}

// A failed check of one table's inputs, naming the table.
inline tensorflow::Status AtTable(const TableRef& table,
                                  const tensorflow::Status& status) {
  if (status.ok()) return status;
  return tensorflow::errors::InvalidArgument(
      "table '", table->table().options().name, "': ", status.message());
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_MANY_UTILS_H_
