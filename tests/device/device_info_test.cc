#include "device/device_info.h"

#include "gtest/gtest.h"

namespace switchyard::device {
namespace {

TEST(DeviceInfoTest, HavingNoDeviceIsNoError) { EXPECT_TRUE(ListDevices().ok()); }

TEST(DeviceInfoTest, DescribesEachDevice) {
  const auto devices = ListDevices();
  ASSERT_TRUE(devices.ok());
  if (devices->empty()) GTEST_SKIP() << "no CUDA device here";
  for (size_t i = 0; i < devices->size(); ++i) {
    const DeviceInfo& info = (*devices)[i];
    EXPECT_EQ(info.device, static_cast<int>(i));
    EXPECT_FALSE(info.name.empty());
    EXPECT_FALSE(info.pci_address.empty());
    EXPECT_GT(info.compute_capability_major, 0);
    EXPECT_GT(info.total_bytes, 0);
    EXPECT_LE(info.free_bytes, info.total_bytes);
  }
}

}  // namespace
}  // namespace switchyard::device
