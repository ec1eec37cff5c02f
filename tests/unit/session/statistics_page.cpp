// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/statistics_page.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch.h"
#include "child.h"

using stalloc::StatisticsHeader;
using stalloc::StatisticsPage;
using stalloc::serve::PublishedFigures;
using stalloc::test::holds_in_child;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "stalloc_page_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] std::vector<fs::path> pages() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".statistics") found.push_back(entry.path());
    }
    return found;
  }

 private:
  fs::path path_;
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

StatisticsHeader header_of(const std::string& content) {
  StatisticsHeader header{};
  REQUIRE(content.size() >= sizeof header);
  std::memcpy(&header, content.data(), sizeof header);
  return header;
}

std::uint64_t number_of(const std::string& content, const StatisticsHeader& header, int device, std::size_t index) {
  std::uint64_t number = 0;
  const std::size_t at = header.header_bytes + static_cast<std::size_t>(device) * header.device_bytes + 8 * index;
  REQUIRE(at + sizeof number <= content.size());
  std::memcpy(&number, content.data() + at, sizeof number);
  return number;
}

}  // namespace

TEST_CASE("a page says whose it is, and shows what is set", "[page]") {
  const Folder folder;
  setenv("RANK", "12", 1);
  std::string why;
  const auto page = StatisticsPage::create(folder.path().string(), "dynamic", &why);
  unsetenv("RANK");
  REQUIRE(page != nullptr);
  REQUIRE(folder.pages().size() == 1);
  struct stat status {};
  REQUIRE(stat(folder.pages()[0].c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);

  StatisticsHeader header = header_of(content_of(folder.pages()[0]));
  CHECK(std::string(header.magic) == "stalloc");
  CHECK(header.version == 1);
  CHECK(header.process == static_cast<std::uint64_t>(getpid()));
  CHECK(header.process_start > 0);
  CHECK(header.rank == 12);
  CHECK(std::string(header.mode) == "dynamic");
  CHECK(std::string(header.command).find("test_session") != std::string::npos);
  CHECK(header.ended == 0);

  PublishedFigures::set(&page->device(3)->live, 4711);
  std::string content = content_of(folder.pages()[0]);
  CHECK(number_of(content, header, 3, 1) == 4711);
  CHECK(number_of(content, header, 2, 1) == 0);
  page->finish();
  CHECK(folder.pages().empty());
}

TEST_CASE("a page stays at its process's end where it is to be kept", "[page]") {
  const Folder folder;
  std::ofstream(folder.path() / StatisticsPage::kKeep);
  std::string why;
  const auto page = StatisticsPage::create(folder.path().string(), "trace", &why);
  REQUIRE(page != nullptr);
  page->finish();
  REQUIRE(folder.pages().size() == 1);
  const StatisticsHeader header = header_of(content_of(folder.pages()[0]));
  CHECK(header.ended >= header.began);
  CHECK(header.began > 0);
}

TEST_CASE("the folder of pages is made for the user alone", "[page]") {
  const Folder folder;
  const fs::path made = folder.path() / "made";
  std::string why;
  REQUIRE(StatisticsPage::create(made.string(), "dynamic", &why) != nullptr);
  struct stat status {};
  REQUIRE(stat(made.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
}

TEST_CASE("folders that others could put files into are refused", "[page]") {
  const Folder folder;
  const fs::path open = folder.path() / "open", link = folder.path() / "link", file = folder.path() / "file";
  fs::create_directory(open);
  REQUIRE(chmod(open.c_str(), 0777) == 0);
  fs::create_directory(folder.path() / "target");
  fs::create_directory_symlink(folder.path() / "target", link);
  std::ofstream{file};
  for (const fs::path& path : {open, link, file, folder.path() / "none" / "deeper"}) {
    std::string why;
    CHECK(StatisticsPage::create(path.string(), "dynamic", &why) == nullptr);
    CHECK(why.find(path.string()) != std::string::npos);
  }
  CHECK(fs::is_empty(open));
  CHECK(fs::is_empty(folder.path() / "target"));
}

TEST_CASE("another user's folder is refused", "[page]") {
  if (geteuid() != 0) return;  // only root can give files away
  const Folder folder;
  const fs::path theirs = folder.path() / "theirs";
  fs::create_directory(theirs);
  REQUIRE(chown(theirs.c_str(), 65534, 65534) == 0);
  REQUIRE(chmod(theirs.c_str(), 0700) == 0);
  std::string why;
  CHECK(StatisticsPage::create(theirs.string(), "dynamic", &why) == nullptr);
  CHECK(why.find("another user") != std::string::npos);
}

TEST_CASE("a limit on the size of files ends no process", "[page]") {
  const Folder folder;
  CHECK(holds_in_child([&] {
    const rlimit limit{4096, 4096};
    std::string why;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
           StatisticsPage::create(folder.path().string(), "dynamic", &why) == nullptr && !why.empty();
  }));
  CHECK(folder.pages().empty());
}
