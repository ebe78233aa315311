#include "c_api.h"

#include <cstring>
#include <memory>
#include <string>

#include "mxrec/table.h"
#include "save_requests.h"

extern "C" int mxrec_table_stats(const char* name, int64_t stats[11]) {
  const std::shared_ptr<mxrec::Table> table =
      mxrec::Registry::Global().Find(name);
  if (table == nullptr) return 0;
  const mxrec::MemoryUsage usage = table->memory();
  stats[0] = table->size();
  stats[1] = table->capacity();
  stats[2] = table->stride();
  stats[3] = table->update_count();
  stats[4] = usage.index_bytes;
  stats[5] = usage.row_bytes;
  stats[6] = usage.other_bytes;
  const mxrec::EvictionStats evictions = table->eviction_stats();
  stats[7] = evictions.candidates;
  stats[8] = evictions.evicted_keys;
  stats[9] = evictions.evicted_candidates;
  stats[10] = evictions.rows_waiting;
  return 1;
}

extern "C" int mxrec_evict(const char* name, int64_t* evicted) {
  const std::shared_ptr<mxrec::Table> table =
      mxrec::Registry::Global().Find(name);
  if (table == nullptr) return 0;
  const int64_t threshold = table->options().admission.eviction_threshold;
  if (threshold < 0) return 0;
  mxrec::Evicted result;
  // It fails only if the table has been released meanwhile.
  if (!table->Evict(threshold, &result).ok()) return 0;
  *evicted = result.keys;
  return 1;
}

extern "C" int mxrec_release_all(void) {
  return mxrec::Registry::Global().ReleaseAll();
}

extern "C" void mxrec_request_save(const char* prefix, int kind,
                                   int64_t least_count) {
  mxrec_ops::SaveRequests::Global().Set(
      prefix, {static_cast<mxrec::SaveKind>(kind), least_count});
}

extern "C" void mxrec_end_save(const char* prefix, int complete) {
  mxrec_ops::SaveRequests::Global().Clear(prefix);
  if (complete == 0) return;
  for (const auto& table : mxrec::Registry::Global().Live()) {
    table->CommitSave(prefix);
  }
}

extern "C" int64_t mxrec_last_saved_prefix(char* prefix, int64_t bytes) {
  const std::string last = mxrec_ops::SaveRequests::Global().LastPrefix();
  if (static_cast<int64_t>(last.size()) < bytes) {
    std::memcpy(prefix, last.c_str(), last.size() + 1);
  }
  return static_cast<int64_t>(last.size());
}
