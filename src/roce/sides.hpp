// What the state machines of roce/ ask of the queue pair that owns them: its memory, its receives
// and its completions. None of these calls may call the state machine again that makes it.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::roce {

/// How a request ended. The numbers are those of ibv_wc_status.
enum class Status : std::uint8_t {
    success = 0,
    local_length = 1,
    local_operation = 2,
    local_protection = 4,
    flushed = 5,
    bad_response = 7,
    remote_invalid_request = 9,
    remote_access = 10,
    remote_operation = 11,
    retries_exceeded = 12,
    rnr_retries_exceeded = 13,
};

enum class Operation : std::uint8_t {
    send,
    send_immediate,
    send_invalidate,
    write,
    write_immediate,
    read,
    compare_swap,
    fetch_add,
    local,  ///< the owner does it itself, in its turn: windows, LOCAL_INV
};

struct Request {
    Operation operation;
    bool fence;      ///< not before every READ and atomic before it is complete
    bool solicited;  ///< IBV_SEND_SOLICITED
    std::uint32_t slot;           ///< the owner's name for it, handed back in each call
    std::uint32_t length;         ///< bytes of the message; of an atomic 8
    std::uint32_t remote_key;     ///< WRITE, READ, atomics
    std::uint64_t remote_address;
    union {
        std::uint32_t immediate;       ///< as the program's bytes lie
        std::uint32_t invalidate_key;  ///< host order
    };
    std::uint64_t compare_or_add;  ///< atomics
    std::uint64_t swap;
};

/// Of a requester: the side of sends.
class SendSide {
  public:
    SendSide() = default;
    SendSide(const SendSide&) = delete;
    SendSide& operator=(const SendSide&) = delete;

    /// Copies the request's bytes from `offset` on. The keys are checked at each call: a packet
    /// may be sent again long after it was posted. `success` or `local_protection`.
    [[nodiscard]] virtual Status gather(std::uint32_t slot, std::uint32_t offset,
                                        std::span<std::uint8_t> to) noexcept = 0;
    /// What a READ brings, in order, the last bytes last; or the eight bytes of an atomic, in host
    /// order. `success` or `local_protection`.
    [[nodiscard]] virtual Status scatter(std::uint32_t slot, std::uint32_t offset,
                                         std::span<const std::uint8_t> from) noexcept = 0;
    /// Does a request of Operation::local, all those before it being complete.
    [[nodiscard]] virtual Status run_local(std::uint32_t slot) noexcept = 0;
    /// The request is complete; those before it are.
    virtual void complete(std::uint32_t slot) noexcept = 0;
    /// The request has failed, those before it are complete, and no other will be: the requester
    /// does nothing more until it is aborted or started.
    virtual void fail(std::uint32_t slot, Status status) noexcept = 0;

  protected:
    ~SendSide() = default;
};

/// How the owner answers a step of what arrives.
enum class Outcome : std::uint8_t {
    done,
    no_receive,        ///< no receive is posted: the sender is to come again later
    invalid_request,   ///< it does not fit into the receive, or the operation is not allowed here
    remote_access,     ///< the key does not allow it
    remote_operation,  ///< the receiver's own memory refuses it
};

/// A message that has arrived.
struct Arrival {
    bool is_write;  ///< its receive, if it took one, holds no bytes of it
    bool solicited;
    bool has_immediate;
    bool invalidates;
    std::uint32_t immediate;       ///< as the program's bytes lie
    std::uint32_t invalidate_key;  ///< host order
    std::uint32_t length;
};

/// Of a responder: the side of receives. A message is `claim` (not a WRITE without immediate),
/// `begin_write` (a WRITE), any number of `place`, and `finish`. Bytes are placed in order, each
/// once, the last ones last. What fails ends the message, and RC's queue pair.
class ReceiveSide {
  public:
    ReceiveSide() = default;
    ReceiveSide(const ReceiveSide&) = delete;
    ReceiveSide& operator=(const ReceiveSide&) = delete;

    /// Takes a receive: at the first packet of a SEND; at the last of a WRITE with immediate,
    /// before its bytes. One that was claimed for a message that was abandoned is it again; WRITEs
    /// that take none may finish meanwhile.
    [[nodiscard]] virtual Outcome claim() noexcept = 0;
    /// The WRITE's bytes go to `address`. Not called for one of no bytes.
    [[nodiscard]] virtual Outcome begin_write(std::uint32_t key, std::uint64_t address,
                                              std::uint32_t length) noexcept = 0;
    /// The message's bytes from `offset` on: into the receive, or to where the WRITE goes. Too
    /// long for the receive: the owner completes it with its error, and answers `invalid_request`.
    [[nodiscard]] virtual Outcome place(std::uint32_t offset,
                                        std::span<const std::uint8_t> bytes) noexcept = 0;
    /// The message is whole.
    [[nodiscard]] virtual Outcome finish(const Arrival& arrival) noexcept = 0;
    /// A message that began will not be finished; UC's alone.
    virtual void abandon() noexcept {}

    /// Is it allowed? Not called for a READ of no bytes.
    [[nodiscard]] virtual Outcome check_read(std::uint32_t key, std::uint64_t address,
                                             std::uint32_t length) noexcept = 0;
    /// Copies what is there now, and checks the key again.
    [[nodiscard]] virtual Outcome read(std::uint32_t key, std::uint64_t address,
                                       std::span<std::uint8_t> to) noexcept = 0;
    /// `compare_swap` or `fetch_add` on eight bytes of host order at an aligned address; `original`
    /// is what was there.
    [[nodiscard]] virtual Outcome atomic(Operation operation, std::uint32_t key,
                                         std::uint64_t address, std::uint64_t compare_or_add,
                                         std::uint64_t swap, std::uint64_t& original) noexcept = 0;
    /// RC: the peer has been told of what is wrong with its request (`remote_access`,
    /// `remote_invalid_request`, `remote_operation`); the queue pair has an error.
    virtual void failed(Status status) noexcept { (void)status; }

  protected:
    ~ReceiveSide() = default;
};

/// The time at which a state machine wants `send` to be called again: never.
inline constexpr std::int64_t never = INT64_MAX;

}  // namespace millrace::roce
