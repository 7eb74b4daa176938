#include "app/listen_address.h"

#include <gtest/gtest.h>

namespace switchyard::app {
namespace {

TEST(ListenAddressTest, ReadsHostAndPort) {
  for (const char* text : {"127.0.0.1:8080", "localhost:0", "[::1]:65535", "0.0.0.0:1"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->Text(), text);
  }
  EXPECT_EQ(ParseListenAddress("[::1]:80")->host, "::1");
}

TEST(ListenAddressTest, RefusesWhatIsNone) {
  for (const char* text : {"", "8080", ":8080", "host", "host:", "host:x", "host:-1", "host:65536",
                           "host:80 ", "::1:80", "[]:80", "host:1x"}) {
    EXPECT_FALSE(ParseListenAddress(text).ok()) << text;
  }
}

}  // namespace
}  // namespace switchyard::app
