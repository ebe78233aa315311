// A directory of its own, removed at the end.
#ifndef MXREC_TESTS_TEMPORARY_DIRECTORY_H_
#define MXREC_TESTS_TEMPORARY_DIRECTORY_H_

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

namespace mxrec {
namespace testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/mxrec_test_XXXXXX";
    path_ = mkdtemp(name);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

 private:
  std::string path_;
};

}  // namespace testing
}  // namespace mxrec

#endif  // MXREC_TESTS_TEMPORARY_DIRECTORY_H_
