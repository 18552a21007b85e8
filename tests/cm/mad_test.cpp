// The bytes of each message, and what is none. The vectors are not this code's: they were laid by
// the tables of the InfiniBand specification (volume 1, chapter 12; the kernel's ibta_vol1_c12.h),
// each field with a value that no neighbour has, and read back by Wireshark's dissector
// (tshark 4.0: REQ, REJ, REP, RTU, DREQ, DREP).
#include "mad.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace millrace::cm {
namespace {

static_assert(std::is_trivially_copyable_v<Mad>, "nothing of it is allocated");

// Header and message, up to the private data.
constexpr std::string_view req_head =
    "0107020300000000515253545556575800100000000000001122334400000000"
    "000000000106123401020304050607080000000080010203abcdef2100000043"
    "000000a37654329d800156f8fffefffdfe800000000000000200c0fffe000201"
    "00000000000000000000ffff7f000003543210169a40b88811121314fe800000"
    "000000000200c0fffe00030100112233445566778899aabbccddeeff1234503f"
    "7b0240f8";
constexpr std::string_view mra_head =
    "010702030000000051525354555657580011000000000000a1a2a3a4b1b2b3b4"
    "40c0";
constexpr std::string_view rej_head =
    "010702030000000051525354555657580012000000000000a1a2a3a4b1b2b3b4"
    "80100004c0bfbebdbcbbbab9b8b7b6b5b4b3b2b1b0afaeadacabaaa9a8a7a6a5"
    "a4a3a2a1a09f9e9d9c9b9a999897969594939291908f8e8d8c8b8a8988878685"
    "84838281807f7e7d7c7b7a79";
constexpr std::string_view rep_head =
    "010702030000000051525354555657580013000000000000a1a2a3a4b1b2b3b4"
    "80010203abcdef00000000007654320021439dd00102030405060708";
constexpr std::string_view rtu_head =
    "010702030000000051525354555657580014000000000000a1a2a3a4b1b2b3b4";
constexpr std::string_view dreq_head =
    "010702030000000051525354555657580015000000000000a1a2a3a4b1b2b3b4"
    "abcdef00";
constexpr std::string_view drep_head =
    "010702030000000051525354555657580016000000000000a1a2a3a4b1b2b3b4";
constexpr std::string_view sidr_req_head =
    "010702030000000051525354555657580017000000000000a1a2a3a480010000"
    "0000000001111234";
constexpr std::string_view sidr_rep_head =
    "010702030000000051525354555657580018000000000000a1a2a3a402030000"
    "abcdef00000000000111123480010203c0bfbebdbcbbbab9b8b7b6b5b4b3b2b1"
    "b0afaeadacabaaa9a8a7a6a5a4a3a2a1a09f9e9d9c9b9a999897969594939291"
    "908f8e8d8c8b8a898887868584838281807f7e7d7c7b7a79";

std::vector<std::uint8_t> bytes_in(std::string_view digits) {
    std::vector<std::uint8_t> bytes;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
        bytes.push_back(
            static_cast<std::uint8_t>(std::stoi(std::string{digits.substr(i, 2)}, nullptr, 16)));
    }
    return bytes;
}

/// The private data of every vector: 0x40, 0x41, …
template <std::size_t Size>
void fill(std::array<std::uint8_t, Size>& private_data) {
    for (std::size_t i = 0; i < Size; ++i) private_data[i] = static_cast<std::uint8_t>(0x40 + i);
}
/// What REJ and SIDR_REP have besides: 0xc0, 0xbf, …
template <std::size_t Size>
void fill_down(std::array<std::uint8_t, Size>& information) {
    for (std::size_t i = 0; i < Size; ++i) information[i] = static_cast<std::uint8_t>(0xc0 - i);
}

std::vector<std::uint8_t> vector_of(std::string_view head) {
    std::vector<std::uint8_t> bytes = bytes_in(head);
    for (std::uint8_t next = 0x40; bytes.size() < mad_bytes; ++next) bytes.push_back(next);
    return bytes;
}

Gid gid_of(std::string_view digits) {
    Gid gid{};
    std::ranges::copy(bytes_in(digits), gid.begin());
    return gid;
}

constexpr std::uint64_t transaction = 0x5152535455565758;
constexpr std::uint32_t local = 0xa1a2a3a4;
constexpr std::uint32_t remote = 0xb1b2b3b4;

Mad a_req() {
    Req req{.local_comm_id = 0x11223344,
            .service_id = 0x1061234,
            .local_ca_guid = 0x0102030405060708,
            .local_q_key = 0x80010203,
            .local_qpn = 0xabcdef,
            .responder_resources = 0x21,
            .initiator_depth = 0x43,
            .remote_response_timeout = 20,
            .transport = TransportType::uc,
            .end_to_end_flow_control = true,
            .starting_psn = 0x765432,
            .local_response_timeout = 19,
            .retry_count = 5,
            .partition_key = 0x8001,
            .path_mtu = 5,
            .rnr_retry_count = 6,
            .max_cm_retries = 15,
            .srq = true,
            .primary = {.local_lid = 0xfffe,
                        .remote_lid = 0xfffd,
                        .local_gid = gid_of("fe800000000000000200c0fffe000201"),
                        .remote_gid = gid_of("00000000000000000000ffff7f000003"),
                        .flow_label = 0x54321,
                        .packet_rate = 0x16,
                        .traffic_class = 0x9a,
                        .hop_limit = 64,
                        .service_level = 11,
                        .subnet_local = true,
                        .local_ack_timeout = 17},
            .alternate = {.local_lid = 0x1112,
                          .remote_lid = 0x1314,
                          .local_gid = gid_of("fe800000000000000200c0fffe000301"),
                          .remote_gid = gid_of("00112233445566778899aabbccddeeff"),
                          .flow_label = 0x12345,
                          .packet_rate = 0x3f,
                          .traffic_class = 0x7b,
                          .hop_limit = 2,
                          .service_level = 4,
                          .subnet_local = false,
                          .local_ack_timeout = 31}};
    fill(req.private_data);
    return {transaction, req};
}
Mad a_mra() {
    Mra mra{.local_comm_id = local,
            .remote_comm_id = remote,
            .answered = Answered::rep,
            .service_timeout = 24};
    fill(mra.private_data);
    return {transaction, mra};
}
Mad a_rej() {
    Rej rej{.local_comm_id = local,
            .remote_comm_id = remote,
            .answered = Answered::other,
            .information_size = 8,
            .reason = RejectReason::timeout};
    fill_down(rej.information);
    fill(rej.private_data);
    return {transaction, rej};
}
Mad a_rep() {
    Rep rep{.local_comm_id = local,
            .remote_comm_id = remote,
            .local_q_key = 0x80010203,
            .local_qpn = 0xabcdef,
            .starting_psn = 0x765432,
            .responder_resources = 0x21,
            .initiator_depth = 0x43,
            .target_ack_delay = 19,
            .failover_accepted = 2,
            .end_to_end_flow_control = true,
            .rnr_retry_count = 6,
            .srq = true,
            .local_ca_guid = 0x0102030405060708};
    fill(rep.private_data);
    return {transaction, rep};
}
Mad a_rtu() {
    Rtu rtu{.local_comm_id = local, .remote_comm_id = remote};
    fill(rtu.private_data);
    return {transaction, rtu};
}
Mad a_dreq() {
    Dreq dreq{.local_comm_id = local, .remote_comm_id = remote, .remote_qpn = 0xabcdef};
    fill(dreq.private_data);
    return {transaction, dreq};
}
Mad a_drep() {
    Drep drep{.local_comm_id = local, .remote_comm_id = remote};
    fill(drep.private_data);
    return {transaction, drep};
}
Mad a_sidr_req() {
    SidrReq req{.request_id = local, .partition_key = 0x8001, .service_id = 0x1111234};
    fill(req.private_data);
    return {transaction, req};
}
Mad a_sidr_rep() {
    SidrRep rep{.request_id = local,
                .status = SidrStatus::rejected,
                .information_size = 3,
                .qpn = 0xabcdef,
                .service_id = 0x1111234,
                .q_key = 0x80010203};
    fill_down(rep.information);
    fill(rep.private_data);
    return {transaction, rep};
}

struct Vector {
    const char* name;
    Attribute attribute;
    std::string_view head;
    Mad (*mad)();
};

class EveryMad : public testing::TestWithParam<Vector> {};

TEST_P(EveryMad, IsTheBytesOfTheSpecification) {
    const Mad mad = GetParam().mad();
    EXPECT_EQ(attribute_of(mad), GetParam().attribute);
    EXPECT_THAT(encode(mad), testing::ElementsAreArray(vector_of(GetParam().head)));
}

TEST_P(EveryMad, IsReadFromTheBytesOfTheSpecification) {
    const std::optional<Mad> mad = decode(vector_of(GetParam().head));
    ASSERT_TRUE(mad);
    EXPECT_EQ(*mad, GetParam().mad());
}

TEST_P(EveryMad, OfBytesThatAPeerMadeUpIsReadAndSaidAgainWithoutWhatIsReserved) {
    std::mt19937_64 random{7};
    for (int round = 0; round < 200; ++round) {
        std::vector<std::uint8_t> bytes = vector_of(GetParam().head);
        for (std::size_t i = 24; i < bytes.size(); ++i) {
            bytes[i] = static_cast<std::uint8_t>(random());
        }
        const std::optional<Mad> mad = decode(bytes);
        ASSERT_TRUE(mad);
        const MadBytes again = encode(*mad);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            ASSERT_EQ(again[i] & ~bytes[i], 0) << "byte " << i << " has bits that nobody said";
        }
        ASSERT_EQ(decode(again), mad);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Cm, EveryMad,
    testing::Values(Vector{"req", Attribute::req, req_head, a_req},
                    Vector{"mra", Attribute::mra, mra_head, a_mra},
                    Vector{"rej", Attribute::rej, rej_head, a_rej},
                    Vector{"rep", Attribute::rep, rep_head, a_rep},
                    Vector{"rtu", Attribute::rtu, rtu_head, a_rtu},
                    Vector{"dreq", Attribute::dreq, dreq_head, a_dreq},
                    Vector{"drep", Attribute::drep, drep_head, a_drep},
                    Vector{"sidr_req", Attribute::sidr_req, sidr_req_head, a_sidr_req},
                    Vector{"sidr_rep", Attribute::sidr_rep, sidr_rep_head, a_sidr_rep}),
    [](const auto& row) { return std::string{row.param.name}; });

TEST(Mads, AreNotReadFromOtherBytes) {
    const std::vector<std::uint8_t> good = vector_of(rtu_head);
    ASSERT_TRUE(decode(good));
    EXPECT_FALSE(decode(std::span{good}.first(255)));
    EXPECT_FALSE(decode({}));
    std::vector<std::uint8_t> longer = good;
    longer.push_back(0);
    EXPECT_FALSE(decode(longer));
    const auto with = [&](std::size_t place, std::uint8_t value) {
        std::vector<std::uint8_t> bytes = good;
        bytes[place] = value;
        return bytes;
    };
    EXPECT_FALSE(decode(with(0, 2))) << "base version";
    EXPECT_FALSE(decode(with(1, 3))) << "another class: the subnet administration's";
    EXPECT_FALSE(decode(with(2, 1))) << "class version";
    EXPECT_FALSE(decode(with(3, 0x83))) << "method";
    EXPECT_FALSE(decode(with(16, 1))) << "attribute";
    EXPECT_FALSE(decode(with(17, 0x0f))) << "attribute";
    EXPECT_FALSE(decode(with(17, 0x19))) << "LAP";
    EXPECT_FALSE(decode(with(17, 0x1a))) << "APR";
}

TEST(Mads, LeaveOffWhatAFieldHasNoRoomFor) {
    Mad mad = a_req();
    const MadBytes before = encode(mad);
    std::get<Req>(mad.body).local_qpn |= 0xff000000;
    std::get<Req>(mad.body).retry_count |= 0xf8;
    std::get<Req>(mad.body).primary.flow_label |= 0xfff00000;
    EXPECT_EQ(encode(mad), before);
}

TEST(AddressHeaders, HaveTheBytesOfRdmaCm) {
    AddressHeader four;
    four.source_port = 0x1c06;
    four.source = gid_of("0000000000000000000000007f000002");
    four.destination = gid_of("0000000000000000000000007f000003");
    std::vector<std::uint8_t> bytes(address_header_bytes, 0xee);
    put_address_header(four, bytes);
    EXPECT_EQ(bytes, bytes_in("00401c060000000000000000000000007f00000200000000000000000000000"
                              "07f000003"));
    EXPECT_EQ(address_header_of(bytes), four);

    AddressHeader six = four;
    six.ip_version = 6;
    six.source = gid_of("fd4d520000000000000000000a000001");
    put_address_header(six, bytes);
    EXPECT_EQ(bytes[1], 0x60);
    EXPECT_EQ(address_header_of(bytes), six);
}

TEST(AddressHeaders, OfAnotherVersionAreNone) {
    std::vector<std::uint8_t> bytes(address_header_bytes);
    put_address_header({}, bytes);
    ASSERT_TRUE(address_header_of(bytes));
    EXPECT_FALSE(address_header_of(std::span{bytes}.first(35)));
    bytes[1] = 0x50;
    EXPECT_FALSE(address_header_of(bytes));
    bytes[1] = 0x40;
    bytes[0] = 1;
    EXPECT_FALSE(address_header_of(bytes));
}

TEST(Services, AreSpaceAndPort) {
    EXPECT_EQ(service_id(PortSpace::tcp, 7174), 0x0000000001061c06U);
    EXPECT_EQ(service_id(PortSpace::udp, 0xffff), 0x000000000111ffffU);
    EXPECT_EQ(port_of(0x0000000001061c06), 7174);
    EXPECT_EQ(port_space_of(0x0000000001061c06), PortSpace::tcp);
    EXPECT_EQ(port_space_of(0x000000000111ffff), PortSpace::udp);
    EXPECT_FALSE(port_space_of(0x1000000001061c06));
    EXPECT_FALSE(port_space_of(0));
}

}  // namespace
}  // namespace millrace::cm
