#include "mxrec/key_times.h"

#include <algorithm>
#include <string>

namespace mxrec {

Status KeyTimes(Span<const int32_t> positions, Span<const int64_t> times,
                Span<int64_t> key_times) {
  const int64_t ids = positions.size();
  const int64_t samples = times.size();
  if (samples == 0 ? ids != 0 : ids % samples != 0) {
    return Status::InvalidArgument(
        "timestamps must be one for the batch or one per sample: got " +
        std::to_string(samples) + " for " + std::to_string(ids) + " ids");
  }
  std::fill(key_times.begin(), key_times.end(), INT64_MIN);
  const int64_t ids_per_sample = samples == 0 ? 0 : ids / samples;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t i = 0; i < ids_per_sample; ++i) {
      const int64_t key = positions[sample * ids_per_sample + i];
      if (key < 0 || key >= key_times.size()) {
        return Status::InvalidArgument(
            "restore[" + std::to_string(sample * ids_per_sample + i) +
            "] = " + std::to_string(key) + " is out of range [0, " +
            std::to_string(key_times.size()) + ")");
      }
      key_times[key] = std::max(key_times[key], times[sample]);
    }
  }
  return Status::Ok();
}

}  // namespace mxrec
