// From the times of a batch to the times of its distinct keys.
#ifndef MXREC_KEY_TIMES_H_
#define MXREC_KEY_TIMES_H_

#include <cstdint>

#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

// key_times[k] = the newest time at which key k occurs, INT64_MIN for a key
// that does not. `positions` are those that Unique gives; `times` has one
// element for each equally long part of them, such as a sample.
// InvalidArgument if they cannot be divided so, or for a position that is not
// in [0, key_times.size()).
Status KeyTimes(Span<const int32_t> positions, Span<const int64_t> times,
                Span<int64_t> key_times);

}  // namespace mxrec

#endif  // MXREC_KEY_TIMES_H_
