// A test harness of one header: TEST registers, EXPECT_* record a failure and
// go on, ASSERT_* end the test. EXPECT_* may be used from several threads.
#ifndef MXREC_TESTS_TESTING_H_
#define MXREC_TESTS_TESTING_H_

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "mxrec/status.h"

namespace mxrec {
namespace testing {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

struct Registration {
  Registration(const char* name, void (*run)()) {
    Cases().push_back({name, run});
  }
};

// Thrown by ASSERT_*; not an error of the program.
struct EndOfTest {};

// Failures of the running test.
inline std::atomic<int>& Failures() {
  static std::atomic<int> failures{0};
  return failures;
}

constexpr int kMaxPrintedFailures = 10;

inline void Fail(const char* file, int line, const std::string& message) {
  static std::mutex mu;
  std::lock_guard<std::mutex> lock(mu);
  const int n = ++Failures();
  if (n > kMaxPrintedFailures) return;
  const char* slash = std::strrchr(file, '/');
  std::printf("  %s:%d: %s\n", slash ? slash + 1 : file, line, message.c_str());
  if (n == kMaxPrintedFailures) std::printf("  (no more are shown)\n");
}

template <typename A, typename B>
constexpr bool kBothIntegers =
    std::is_integral_v<A> && std::is_integral_v<B> &&
    !std::is_same_v<A, bool> && !std::is_same_v<B, bool>;

// Compares integers by value, whatever their signedness.
template <typename A, typename B>
bool Equal(const A& a, const B& b) {
  if constexpr (kBothIntegers<A, B>) {
    return static_cast<__int128>(a) == static_cast<__int128>(b);
  } else {
    return a == b;
  }
}

template <typename A, typename B>
bool AtMost(const A& a, const B& b) {
  if constexpr (kBothIntegers<A, B>) {
    return static_cast<__int128>(a) <= static_cast<__int128>(b);
  } else {
    return a <= b;
  }
}

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<int64_t>(value);
  } else {
    out.precision(17);
    out << value;
  }
  return out.str();
}

// Runs every test whose name contains one of `filters` (all if there are
// none). Returns the exit code.
inline int RunAll(const std::vector<std::string>& filters) {
  int passed = 0;
  int failed = 0;
  for (const Case& test : Cases()) {
    bool wanted = filters.empty();
    for (const std::string& filter : filters) {
      wanted |= std::strstr(test.name, filter.c_str()) != nullptr;
    }
    if (!wanted) continue;
    Failures() = 0;
    const auto start = std::chrono::steady_clock::now();
    try {
      test.run();
    } catch (const EndOfTest&) {
    }
    const double ms = std::chrono::duration<double, std::milli>(
                          std::chrono::steady_clock::now() - start)
                          .count();
    const bool ok = Failures() == 0;
    std::printf("%s %s (%.0f ms)\n", ok ? "ok  " : "FAIL", test.name, ms);
    std::fflush(stdout);
    ++(ok ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace testing
}  // namespace mxrec

#define TEST(name)                                                 \
  static void Test_##name();                                       \
  static const ::mxrec::testing::Registration registration_##name( \
      #name, &Test_##name);                                        \
  static void Test_##name()

#define MXREC_FAIL_(message) \
  ::mxrec::testing::Fail(__FILE__, __LINE__, (message))

#define MXREC_COMPARE_(a, b, op, test, otherwise)             \
  do {                                                        \
    const auto mxrec_a = (a);                                 \
    const auto mxrec_b = (b);                                 \
    if (!(test)) {                                            \
      MXREC_FAIL_(std::string(#a " " op " " #b ": ") +        \
                  ::mxrec::testing::Show(mxrec_a) + " and " + \
                  ::mxrec::testing::Show(mxrec_b));           \
      otherwise;                                              \
    }                                                         \
  } while (false)

#define MXREC_EQ_(a, b, otherwise)                                        \
  MXREC_COMPARE_(a, b, "==", (::mxrec::testing::Equal(mxrec_a, mxrec_b)), \
                 otherwise)
#define MXREC_END_ throw ::mxrec::testing::EndOfTest()

#define EXPECT_EQ(a, b) MXREC_EQ_(a, b, (void)0)
#define ASSERT_EQ(a, b) MXREC_EQ_(a, b, MXREC_END_)
#define EXPECT_NE(a, b)                                                    \
  MXREC_COMPARE_(a, b, "!=", (!::mxrec::testing::Equal(mxrec_a, mxrec_b)), \
                 (void)0)
#define EXPECT_LE(a, b)                                                    \
  MXREC_COMPARE_(a, b, "<=", (::mxrec::testing::AtMost(mxrec_a, mxrec_b)), \
                 (void)0)
#define EXPECT_LT(a, b)                                                    \
  MXREC_COMPARE_(a, b, "<", (!::mxrec::testing::AtMost(mxrec_b, mxrec_a)), \
                 (void)0)
#define EXPECT_NEAR(a, b, tolerance)                                       \
  MXREC_COMPARE_(a, b, "~",                                                \
                 (std::fabs(static_cast<double>(mxrec_a) -                 \
                            static_cast<double>(mxrec_b)) <= (tolerance)), \
                 (void)0)

#define EXPECT_TRUE(condition)                        \
  do {                                                \
    if (!(condition)) MXREC_FAIL_("not " #condition); \
  } while (false)
#define EXPECT_FALSE(condition)                    \
  do {                                             \
    if (condition) MXREC_FAIL_("yes " #condition); \
  } while (false)
#define ASSERT_TRUE(condition)        \
  do {                                \
    if (!(condition)) {               \
      MXREC_FAIL_("not " #condition); \
      MXREC_END_;                     \
    }                                 \
  } while (false)

#define MXREC_OK_(expression, otherwise)                      \
  do {                                                        \
    const ::mxrec::Status mxrec_status = (expression);        \
    if (!mxrec_status.ok()) {                                 \
      MXREC_FAIL_(#expression ": " + mxrec_status.message()); \
      otherwise;                                              \
    }                                                         \
  } while (false)
#define EXPECT_OK(expression) MXREC_OK_(expression, (void)0)
#define ASSERT_OK(expression) MXREC_OK_(expression, MXREC_END_)

// The status has this code and its message holds this text.
#define EXPECT_ERROR(expression, expected, text)                         \
  do {                                                                   \
    const ::mxrec::Status mxrec_status = (expression);                   \
    if (mxrec_status.code() != (expected)) {                             \
      MXREC_FAIL_(#expression ": not " #expected ": code " +             \
                  ::mxrec::testing::Show(mxrec_status.code()) + ": " +   \
                  mxrec_status.message());                               \
    } else if (mxrec_status.message().find(text) == std::string::npos) { \
      MXREC_FAIL_(#expression ": no '" + std::string(text) + "' in '" +  \
                  mxrec_status.message() + "'");                         \
    }                                                                    \
  } while (false)

#endif  // MXREC_TESTS_TESTING_H_
