// core_tests [part of a test name]...
#include <string>
#include <vector>

#include "tests/testing.h"

int main(int argc, char** argv) {
  return mxrec::testing::RunAll(
      std::vector<std::string>(argv + 1, argv + argc));
}
