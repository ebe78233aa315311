#include "mxrec/key_times.h"

#include <cstdint>
#include <vector>

#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

TEST(KeyTimes_TheNewestOccurrenceCounts) {
  std::vector<int64_t> out(3, -1);
  EXPECT_OK(KeyTimes(std::vector<int32_t>{0, 1, 1, 2, 0, 0},
                     std::vector<int64_t>{7, 9, 5}, out));
  EXPECT_TRUE(out == (std::vector<int64_t>{7, 9, 9}));
  EXPECT_OK(
      KeyTimes(std::vector<int32_t>{0, 1, 2}, std::vector<int64_t>{4}, out));
  EXPECT_TRUE(out == (std::vector<int64_t>{4, 4, 4}));
  EXPECT_OK(KeyTimes({}, {}, Span<int64_t>()));
}

TEST(KeyTimes_RefusesWhatDoesNotGoTogether) {
  std::vector<int64_t> out(2);
  EXPECT_ERROR(
      KeyTimes(std::vector<int32_t>{0, 1, 0}, std::vector<int64_t>{1, 2}, out),
      Code::kInvalidArgument, "got 2 for 3 ids");
  EXPECT_ERROR(KeyTimes(std::vector<int32_t>{0}, {}, out),
               Code::kInvalidArgument, "got 0 for 1 ids");
  EXPECT_ERROR(
      KeyTimes(std::vector<int32_t>{0, 2}, std::vector<int64_t>{1}, out),
      Code::kInvalidArgument, "restore[1] = 2");
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
