#include "c_api.h"

#include <memory>

#include "mxrec/table.h"

extern "C" int mxrec_table_stats(const char* name, int64_t stats[7]) {
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
  return 1;
}

extern "C" int mxrec_release_all(void) {
  return mxrec::Registry::Global().ReleaseAll();
}
