// Plain C entry points for Python, for what needs no Session.
#ifndef MXREC_OPS_C_API_H_
#define MXREC_OPS_C_API_H_

#include <stdint.h>

#define MXREC_EXPORT __attribute__((visibility("default")))

extern "C" {

// 1 if a session has run a graph whose MxRecTable nodes carry `token`.
MXREC_EXPORT int mxrec_graph_was_run(const char* token);

// `names` are a graph's nodes in order of creation, one a line. 1 if a session
// with a device of one of these incarnations has run a graph that consists of
// the first of them, however many.
MXREC_EXPORT int mxrec_beginning_was_run(const char* names,
                                         const uint64_t* incarnations,
                                         int num_incarnations);

// Fills `stats` for the newest live table of that name: size, capacity, stride,
// update count, index bytes, row bytes, other bytes, candidates, evicted keys,
// evicted candidates, rows waiting. 1 if there is one.
MXREC_EXPORT int mxrec_table_stats(const char* name, int64_t stats[11]);

// Evicts from the newest live table of that name by its eviction_threshold.
// *evicted keys lost their rows. 0 if there is no such table, or it has no
// threshold.
MXREC_EXPORT int mxrec_evict(const char* name, int64_t* evicted);

// Releases all live tables of the process; how many there were.
MXREC_EXPORT int mxrec_release_all(void);

// The next save to the checkpoint `prefix` shall be: 0 for itself, 1 the base
// of deltas, 2 a delta that leaves out keys met fewer than `least_count` times.
MXREC_EXPORT void mxrec_request_save(const char* prefix, int kind,
                                     int64_t least_count);
// Ends what mxrec_request_save has begun; with `complete`, the checkpoint is
// whole, and deltas may build on it.
MXREC_EXPORT void mxrec_end_save(const char* prefix, int complete);

// Copies the prefix that a table was last saved to, "" if none was, with its
// final zero if it is shorter than `bytes`. Returns its length.
MXREC_EXPORT int64_t mxrec_last_saved_prefix(char* prefix, int64_t bytes);

}  // extern "C"

#endif  // MXREC_OPS_C_API_H_
