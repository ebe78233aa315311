// What the admission of keys to a table and their eviction from it are told.
// See docs/faae.md for the rules.
#ifndef MXREC_ADMISSION_H_
#define MXREC_ADMISSION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/span.h"

namespace mxrec {

// Which keys go first when a table has more than it may have.
enum class EvictPolicy {
  kLeastRecent,    // by the time they were last seen
  kLeastFrequent,  // by their count; of equal ones the least recent
};

class SharedCounts;

struct AdmissionOptions {
  // -1: every key gets a row when it is first seen. n > 0: once its count
  // has reached n. 0: at once, and counts stay as they are (frozen).
  int64_t access_threshold = -1;
  // What Evict is meant to be called with; -1: none. Kept for who calls it.
  int64_t eviction_threshold = -1;
  // Keep the time each key was last seen: needed for eviction.
  bool record_times = false;
  // Times are those of a clock that every training lookup moves on by one, and
  // not those that lookups are given.
  bool use_lookup_clock = false;
  // 0: no bound. Else the table evicts by itself down to somewhat below it.
  int64_t max_keys = 0;
  EvictPolicy evict_policy = EvictPolicy::kLeastRecent;
  // What an occurrence counts by the table's lookups, distinct and ascending;
  // empty: 1. Kept for who saves it; lookups say it themselves.
  std::vector<int64_t> coefficients;
  // Counts of several tables in one, null if each counts for itself.
  std::shared_ptr<SharedCounts> shared_counts;

  bool admits() const { return access_threshold >= 0; }
  bool may_evict() const { return record_times || max_keys > 0; }
};

// How often and when the keys of a training lookup occurred.
struct Occurrences {
  Span<const int32_t> counts;  // one per key, >= 0; empty: 1 each
  int64_t coefficient = 1;     // >= 1, what one occurrence counts
  // Seconds, >= 0: one per key, or one for all; empty: the newest the table
  // has seen.
  Span<const int64_t> times;
};

// What of admission changes while a table is used. Keys keep the rest.
struct AdmissionState {
  int64_t access_threshold = -1;  // in force; -1: no admission
  bool is_frozen = false;         // counts stay as they are
  int64_t newest_time = 0;        // or the lookup clock
};

// Keys that have been seen and have no row yet.
struct CandidateChunk {
  Span<const Key> keys;
  Span<const int64_t> counts;
  Span<const int64_t> times;  // last seen; 0 where times are not recorded
};

struct Evicted {
  int64_t keys = 0;
  int64_t candidates = 0;
};

struct EvictionStats {
  int64_t candidates = 0;    // now
  int64_t evicted_keys = 0;  // so far, for any reason
  int64_t evicted_candidates = 0;
  int64_t rows_waiting = 0;  // of evicted keys, not used again yet
};

}  // namespace mxrec

#endif  // MXREC_ADMISSION_H_
