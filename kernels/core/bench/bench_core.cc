// bench_core [rounds [part...]]: times of the core. Parts: operations, limits,
// growth; all of them if none is named.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench/bench_utils.h"
#include "tests/testing.h"

int main(int argc, char** argv) {
  using namespace mxrec::testing;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 31;
  const auto wanted = [&](const char* part) {
    return argc < 3 || std::any_of(
                           argv + 2, argv + argc,
                           [part](const char* name) {
                             return std::strcmp(name, part) == 0;
                           });
  };
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (wanted("operations")) BenchOperations(rounds);
  if (wanted("limits")) BenchLimits(rounds);
  if (wanted("growth")) BenchGrowth();
  return Failures() == 0 ? 0 : 1;
}
