#include "wire.hpp"

namespace millrace::stream {
namespace {

template <class Body>
Violation read(std::span<const std::byte> bytes, std::uint8_t flags, Message& message) noexcept {
    if (bytes.size() != sizeof(Body)) return Violation::malformed;
    Body body;
    std::memcpy(&body, bytes.data(), sizeof body);
    if ((body.header.flags & ~flags) != 0 || body.header.zero != 0) return Violation::malformed;
    message = body;
    return Violation::none;
}

}  // namespace

Violation decode(std::span<const std::byte> bytes, Message& message) noexcept {
    if (bytes.empty()) return Violation::malformed;
    switch (static_cast<MessageKind>(bytes.front())) {
        case MessageKind::advert: return read<AdvertMessage>(bytes, advert_wait_all, message);
        case MessageKind::direct:
            return read<TransferMessage>(bytes, transfer_ends_message | transfer_cut_off, message);
        case MessageKind::indirect:
            return read<TransferMessage>(
                bytes, transfer_ends_message | transfer_cut_off | transfer_unhurried, message);
        case MessageKind::acknowledgement: return read<AcknowledgementMessage>(bytes, 0, message);
        case MessageKind::cancel: return read<CancelMessage>(bytes, 0, message);
        case MessageKind::cancelled: return read<CancelledMessage>(bytes, 0, message);
        case MessageKind::fin: return read<FinMessage>(bytes, 0, message);
        case MessageKind::credit: return read<CreditMessage>(bytes, 0, message);
    }
    return Violation::malformed;
}

}  // namespace millrace::stream
