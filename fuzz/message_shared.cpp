// Clients that scribble in a shared buffer: an input chooses its shape, and is a list of steps:
// packets that clients write as they should, parts of such, noise anywhere in the buffer and in the
// words, and looks of the server, which hands what it finds to its packet streams.
//
// Required: every call returns; what is read lies in the server's own memory; what an honest client
// writes lies in the buffer and in its row; what nobody has touched since is found as it was
// written.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/target.hpp"
#include "lane/packet_stream.hpp"
#include "lane/shared_buffer.hpp"
#include "lane/shared_sender.hpp"

namespace millrace::fuzz {
namespace {

using namespace message;

constexpr std::uint32_t most_steps = 300;
constexpr std::size_t packet_bytes = 256;

SharedShape shape_of(Input& input) {
    return {
        .places = 1 + input.below(4), .slots = 1U << input.below(7), .lines = 8 + input.below(64)};
}

class Session {
  public:
    explicit Session(Input& input)
        : input_{input},
          shape_{shape_of(input)},
          // Of the exact length, so that a sanitizer sees who reads beyond it.
          memory_{new(std::align_val_t{shared_line_bytes}) std::byte[shape_.bytes()]{}},
          reader_{{memory_.get(), shape_.bytes()}, shape_},
          copies_(packet_bytes / 8) {
        for (std::uint32_t place = 0; place < shape_.places; ++place) {
            clients_.push_back(std::make_unique<Client>(shape_, place));
        }
    }

    void run() {
        take_steps(input_, most_steps, [this] { step(); });
    }

  private:
    struct Client {
        Client(const SharedShape& shape, std::uint32_t its_place)
            : token{its_place + 1},
              places{shape, shared_seed(token), its_place},
              sent{{.own_token = 9,
                    .peer_token = token,
                    .packet_bytes = packet_bytes,
                    .peer_room = shape.slots,
                    .has_timer = true},
                   memory},
              server{{.own_token = token,
                      .peer_token = 9,
                      .packet_bytes = packet_bytes,
                      .own_room = shape.slots,
                      .max_message_bytes = 1000},
                     server_memory} {}
        std::uint64_t token;
        SharedPlaces places;
        alignas(16) std::array<std::byte, 4096> memory{};
        alignas(16) std::array<std::byte, 4096> server_memory{};
        PacketStream sent;               ///< the client's end
        PacketStream server;             ///< and the server's
        std::vector<std::byte> written;  ///< last …
        std::uint64_t word = 0;          ///< … under that word,
        bool is_untouched = false;       ///< which nobody has written over
        std::uint64_t tickets = 0;
    };
    struct Freed {
        void operator()(std::byte* memory) const noexcept {
            ::operator delete[](memory, std::align_val_t{shared_line_bytes});
        }
    };

    void step() {
        Client& client = *clients_[input_.below(static_cast<std::uint32_t>(clients_.size()))];
        const auto place = static_cast<std::uint32_t>(client.token - 1);
        switch (input_.below(8)) {
            case 0: {
                const auto bytes = std::as_bytes(input_.bytes(input_.below(400)));
                (void)client.sent.send({}, bytes);
                break;
            }
            case 1:
            case 2: write(client, place); break;
            case 3: {  // noise anywhere
                const std::size_t at = input_.below(static_cast<std::uint32_t>(shape_.bytes()));
                const auto noise =
                    input_.bytes(std::min<std::size_t>(input_.below(40), shape_.bytes() - at));
                if (!noise.empty()) std::memcpy(memory_.get() + at, noise.data(), noise.size());
                touch();
                break;
            }
            case 4: {  // a word with a line, and a checksum of whatever lies there
                const auto line = input_.take<std::uint16_t>() % (shape_.lines + 2);
                const std::size_t at = shape_.buffer_at() + line * shared_line_bytes;
                std::uint32_t checksum = 0;
                if (line < shape_.lines) {
                    PacketHead head;
                    std::memcpy(&head, memory_.get() + at, sizeof head);
                    const std::size_t bytes =
                        std::min(sizeof head + head.length, shape_.bytes() - at);
                    checksum = crc32c({memory_.get() + at, bytes}, shared_seed(client.token));
                }
                set(place, input_.below(static_cast<std::uint32_t>(shape_.row())),
                    shared_word(static_cast<std::uint32_t>(line), checksum));
                touch();
                break;
            }
            case 5: {
                reader_.clear(place);
                client.is_untouched = false;
                break;
            }
            case 6: input_.below(2) == 0 ? reader_.rest() : reader_.wake(); break;
            default: look(); break;
        }
    }
    void touch() {
        for (const auto& each : clients_) each->is_untouched = false;
    }
    void set(std::uint32_t place, std::size_t word, std::uint64_t content) {
        std::memcpy(memory_.get() + shape_.row_at(place) + word * sizeof content, &content,
                    sizeof content);
    }
    void write(Client& client, std::uint32_t place) {
        std::span<const std::byte> packet;
        if (!client.sent.next(packet, now_)) return;
        const SharedPlaces::Place where = client.places.next(packet);
        require(where.word < shape_.row(), "a word lies in its row");
        require(where.line + in_shared_lines(packet.size()) <= shape_.lines,
                "a packet lies in the buffer");
        touch();
        // All of it, or what a client leaves that dies.
        const bool is_whole = input_.below(8) != 0;
        const std::size_t bytes =
            is_whole ? packet.size() : input_.below(static_cast<std::uint32_t>(packet.size()));
        std::memcpy(memory_.get() + shape_.buffer_at() + where.line * shared_line_bytes,
                    packet.data(), bytes);
        if (is_whole) set(place, where.word, where.content);
        client.written.assign(packet.begin(), packet.end());
        client.word = where.content;
        client.is_untouched = is_whole;
        client.sent.posted(++client.tickets, now_);
        client.sent.completed(client.tickets);
    }
    void look() {
        reader_.look(shape_.places, [this](std::uint32_t place, std::uint64_t word) {
            require(place < shape_.places, "a word is somebody's");
            Client& client = *clients_[place];
            const std::span<std::byte> into = std::as_writable_bytes(std::span{copies_});
            std::span<const std::byte> packet;
            const bool is_whole = reader_.read(word, shared_seed(client.token), into, packet);
            const bool is_untouched = client.is_untouched && word == client.word;
            if (!is_whole) {
                require(!is_untouched, "what nobody touched is whole");
                client.server.note_damaged();
                return;
            }
            require(packet.data() == into.data() && packet.size() <= into.size(),
                    "what is read lies in memory of the server");
            if (is_untouched) {
                require(std::ranges::equal(packet, client.written), "it is what was written");
            }
            (void)client.server.receive(packet, 0, now_, false);
        });
        for (const auto& each : clients_) each->is_untouched = false;
    }

    Input& input_;
    SharedShape shape_;
    std::unique_ptr<std::byte[], Freed> memory_;
    SharedReader reader_;
    std::vector<std::uint64_t> copies_;
    std::vector<std::unique_ptr<Client>> clients_;
    PacketStream::Time now_{std::chrono::seconds{1}};
};

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // What a server says of its buffer, too: what is taken for valid is no larger than it says.
    if (size >= sizeof(millrace::message::SharedFacts)) {
        millrace::message::SharedFacts facts;
        std::memcpy(&facts, data, sizeof facts);
        if (facts.is_valid(1024)) {
            millrace::fuzz::require(
                facts.shape().row_at(facts.place + 1) <= facts.shape().buffer_at() &&
                    facts.shape().buffer_at() < facts.shape().bytes(),
                "a row lies before the buffer");
        }
    }
    return millrace::fuzz::run_session<millrace::fuzz::Session>(data, size);
}
