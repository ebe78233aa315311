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

}  // extern "C"

#endif  // MXREC_OPS_C_API_H_
