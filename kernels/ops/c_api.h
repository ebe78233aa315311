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
// update count, index bytes, row bytes, other bytes. 1 if there is one.
MXREC_EXPORT int mxrec_table_stats(const char* name, int64_t stats[7]);

// Releases all live tables of the process; how many there were.
MXREC_EXPORT int mxrec_release_all(void);

}  // extern "C"

#endif  // MXREC_OPS_C_API_H_
