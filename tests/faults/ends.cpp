// See ends.hpp. Compiled once: the ends of all 33 designs take the compiler a while.
#include "faults/ends.hpp"

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "flow/any_ends.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace::faults {
namespace {

template <ring::Design D>
class ItemsOut final : public Out {
  public:
    explicit ItemsOut(flow::Producer<Item, D> producer) : producer_{std::move(producer)} {}
    Status put(std::uint64_t number, const Deadline& deadline) override {
        return producer_.enqueue(Item::make(number), deadline);
    }
    Status close(const Deadline& deadline) override { return producer_.close(deadline); }
    [[nodiscard]] std::string failure() const override { return producer_.failure(); }

  private:
    flow::Producer<Item, D> producer_;
};

template <ring::Design D>
class ItemsIn final : public In {
  public:
    explicit ItemsIn(flow::Consumer<Item, D> consumer) : consumer_{std::move(consumer)} {}
    Status take(std::uint64_t number, bool& right, const Deadline& deadline) override {
        Item item;
        const Status status = consumer_.dequeue(item, deadline);
        right = status == Status::ok && item.is(number);
        return status;
    }
    void close() override { consumer_.close(); }
    [[nodiscard]] std::string failure() const override { return consumer_.failure(); }

  private:
    flow::Consumer<Item, D> consumer_;
};

template <ring::Design D>
class BytesOut final : public Out {
  public:
    explicit BytesOut(flow::Producer<flow::Bytes, D> producer) : producer_{std::move(producer)} {}
    Status put(std::uint64_t number, const Deadline& deadline) override {
        const Item item = Item::make(number);
        return producer_.enqueue(std::as_bytes(std::span{&item, 1}).first(Item::bytes_of(number)),
                                 deadline);
    }
    Status close(const Deadline& deadline) override { return producer_.close(deadline); }
    [[nodiscard]] std::string failure() const override { return producer_.failure(); }

  private:
    flow::Producer<flow::Bytes, D> producer_;
};

[[nodiscard]] bool is_item(std::span<const std::byte> bytes, std::uint64_t number) {
    const Item item = Item::make(number);
    return bytes.size() == Item::bytes_of(number) &&
           std::memcmp(bytes.data(), &item, bytes.size()) == 0;
}

template <ring::Design D>
class BytesIn final : public In {
  public:
    explicit BytesIn(flow::Consumer<flow::Bytes, D> consumer) : consumer_{std::move(consumer)} {}
    Status take(std::uint64_t number, bool& right, const Deadline& deadline) override {
        const Status status = consumer_.dequeue(bytes_, deadline);
        right = status == Status::ok && is_item(bytes_, number);
        return status;
    }
    void close() override { consumer_.close(); }
    [[nodiscard]] std::string failure() const override { return consumer_.failure(); }

  private:
    flow::Consumer<flow::Bytes, D> consumer_;
    std::vector<std::byte> bytes_;
};

/// Over a design that is chosen at run time.
template <class T>
class AnyOut final : public Out {
  public:
    explicit AnyOut(flow::AnyProducer<T> producer) : producer_{std::move(producer)} {}
    Status put(std::uint64_t number, const Deadline& deadline) override {
        const Item item = Item::make(number);
        if constexpr (std::is_same_v<T, Item>) {
            return producer_.enqueue(item, deadline);
        } else {
            return producer_.enqueue(
                std::as_bytes(std::span{&item, 1}).first(Item::bytes_of(number)), deadline);
        }
    }
    Status close(const Deadline& deadline) override { return producer_.close(deadline); }
    [[nodiscard]] std::string failure() const override { return producer_.failure(); }

  private:
    flow::AnyProducer<T> producer_;
};

template <class T>
class AnyIn final : public In {
  public:
    explicit AnyIn(flow::AnyConsumer<T> consumer) : consumer_{std::move(consumer)} {}
    Status take(std::uint64_t number, bool& right, const Deadline& deadline) override {
        const Status status = consumer_.dequeue(item_, deadline);
        if constexpr (std::is_same_v<T, Item>) {
            right = status == Status::ok && item_.is(number);
        } else {
            right = status == Status::ok && is_item(item_, number);
        }
        return status;
    }
    void close() override { consumer_.close(); }
    [[nodiscard]] std::string failure() const override { return consumer_.failure(); }

  private:
    flow::AnyConsumer<T> consumer_;
    flow::detail::Taken<T> item_{};
};

class MessagesOut final : public Out {
  public:
    explicit MessagesOut(message::Channel channel) : channel_{std::move(channel)} {}
    Status put(std::uint64_t number, const Deadline& deadline) override {
        const Item item = Item::make(number);
        return channel_.send(std::as_bytes(std::span{&item, 1}).first(Item::bytes_of(number)),
                             deadline);
    }
    Status close(const Deadline& deadline) override { return channel_.close(deadline); }
    [[nodiscard]] std::string failure() const override { return channel_.failure(); }

  private:
    message::Channel channel_;
};

class MessagesIn final : public In {
  public:
    explicit MessagesIn(message::Channel channel) : channel_{std::move(channel)} {}
    Status take(std::uint64_t number, bool& right, const Deadline& deadline) override {
        right = false;
        return channel_.receive(
            [&](std::span<const std::byte> bytes) { right = is_item(bytes, number); }, deadline);
    }
    void close() override { (void)channel_.close(Deadline::after(100ms)); }
    [[nodiscard]] std::string failure() const override { return channel_.failure(); }

  private:
    message::Channel channel_;
};

[[nodiscard]] message::Channel make_channel(const Setup& setup, bool listens,
                                            const Deadline& deadline) {
    const auto address = connect::Address::parse(setup.address);
    std::size_t bytes = message::smallest_ring;
    while (bytes < setup.capacity * 128) bytes *= 2;
    message::ChannelOptions options;
    options.ring_bytes = bytes;
    options.wait = setup.wait;
    if (!listens) return message::connect(address, std::move(options), deadline);
    return message::Listener::listen(address, std::move(options)).accept(deadline);
}

/// Items as pieces of a byte stream, some under way at a time; receives are filled whole, and
/// advertised however short they are.
class StreamEnd {
  protected:
    static constexpr std::uint64_t places = 16;

    explicit StreamEnd(stream::Socket socket) : socket_{std::move(socket)} {}
    [[nodiscard]] stream::Slice place(std::uint64_t number) const {
        return memory_.slice(number % places * sizeof(Item), sizeof(Item));
    }
    [[nodiscard]] std::byte* bytes(std::uint64_t number) const {
        return memory_.data() + number % places * sizeof(Item);
    }
    [[nodiscard]] Status next(const Deadline& deadline) {
        stream::Completion done;
        const Status status = socket_.wait(done, deadline);
        return status == Status::ok ? done.status : status;
    }

    stream::Buffer memory_{places * sizeof(Item)};
    stream::Socket socket_;
    std::uint64_t begun_ = 0;
    std::uint64_t ended_ = 0;
};

class StreamOut final : public Out, StreamEnd {
  public:
    explicit StreamOut(stream::Socket socket) : StreamEnd{std::move(socket)} {}
    Status put(std::uint64_t number, const Deadline& deadline) override {
        while (begun_ - ended_ == places) {
            if (const Status status = next(deadline); status != Status::ok) return status;
            ++ended_;
        }
        const Item item = Item::make(number);
        std::memcpy(bytes(begun_), &item, sizeof item);
        const Status status = socket_.send(place(begun_), number);
        if (status == Status::ok) ++begun_;
        return status;
    }
    Status close(const Deadline& deadline) override { return socket_.close(deadline); }
    [[nodiscard]] std::string failure() const override { return socket_.failure(); }
};

class StreamIn final : public In, StreamEnd {
  public:
    explicit StreamIn(stream::Socket socket) : StreamEnd{std::move(socket)} {}
    Status take(std::uint64_t number, bool& right, const Deadline& deadline) override {
        while (begun_ - ended_ < places) {
            const Status status =
                socket_.receive(place(begun_), begun_, stream::ReceiveFlags::wait_all);
            if (status != Status::ok) break;
            ++begun_;
        }
        const Status status = next(deadline);
        if (status == Status::empty) return ended_status_;
        if (status == Status::timed_out || status == Status::cancelled) return status;
        if (status != Status::ok) ended_status_ = status;
        Item item;
        std::memcpy(&item, bytes(ended_++), sizeof item);
        right = status == Status::ok && item.is(number);
        return status;
    }
    void close() override { (void)socket_.close(Deadline::after(100ms)); }
    [[nodiscard]] std::string failure() const override { return socket_.failure(); }

  private:
    Status ended_status_ = Status::peer_lost;
};

[[nodiscard]] stream::Socket make_socket(const Setup& setup, bool listens,
                                         const Deadline& deadline) {
    const auto address = connect::Address::parse(setup.address);
    stream::SocketOptions options;
    options.ring_bytes = 64;
    while (options.ring_bytes < setup.capacity * sizeof(Item)) options.ring_bytes *= 2;
    options.wait = setup.wait;
    options.tuning.least_advertised = 1;
    if (!listens) return stream::connect(address, std::move(options), deadline);
    return stream::Listener::listen(address, std::move(options)).accept(deadline);
}

[[nodiscard]] flow::Options flow_options(const Setup& setup, bool framed) {
    flow::Options options;
    options.ring.capacity = framed ? setup.capacity * 96 + 128 : setup.capacity;
    options.wait = setup.wait;
    return options;
}

template <class End>
[[nodiscard]] End make_flow(const Setup& setup, bool listens, bool framed,
                            const Deadline& deadline) {
    flow::Options options = flow_options(setup, framed);
    return listens ? End::listen(setup.address, std::move(options), deadline)
                   : End::connect(setup.address, std::move(options), deadline);
}

template <class End>
[[nodiscard]] End make_any(const ring::NamedDesign& named, const Setup& setup, bool listens,
                           bool framed, const Deadline& deadline) {
    flow::Options options = flow_options(setup, framed);
    options.ring.batch = named.batch;
    return listens ? End::listen(named.design, setup.address, std::move(options), deadline)
                   : End::connect(named.design, setup.address, std::move(options), deadline);
}

}  // namespace

std::unique_ptr<Out> make_out(std::string_view kind, const Setup& setup, bool listens,
                              const Deadline& deadline) {
    using namespace ring;
    if (kind == "flow1") {
        return std::make_unique<ItemsOut<design_1>>(
            make_flow<flow::Producer<Item, design_1>>(setup, listens, false, deadline));
    }
    if (kind == "flow2") {
        return std::make_unique<ItemsOut<design_2>>(
            make_flow<flow::Producer<Item, design_2>>(setup, listens, false, deadline));
    }
    if (kind == "bytes1") {
        return std::make_unique<BytesOut<design_1>>(
            make_flow<flow::Producer<flow::Bytes, design_1>>(setup, listens, true, deadline));
    }
    if (kind == "bytes2") {
        return std::make_unique<BytesOut<design_2>>(
            make_flow<flow::Producer<flow::Bytes, design_2>>(setup, listens, true, deadline));
    }
    if (kind == "message") {
        return std::make_unique<MessagesOut>(make_channel(setup, listens, deadline));
    }
    if (kind == "stream") return std::make_unique<StreamOut>(make_socket(setup, listens, deadline));
    if (kind.starts_with(framed_prefix)) {
        return std::make_unique<AnyOut<flow::Bytes>>(make_any<flow::AnyProducer<flow::Bytes>>(
            parse_design(kind.substr(framed_prefix.size())), setup, listens, true, deadline));
    }
    return std::make_unique<AnyOut<Item>>(
        make_any<flow::AnyProducer<Item>>(parse_design(kind), setup, listens, false, deadline));
}

std::unique_ptr<In> make_in(std::string_view kind, const Setup& setup, bool listens,
                            const Deadline& deadline) {
    using namespace ring;
    if (kind == "flow1") {
        return std::make_unique<ItemsIn<design_1>>(
            make_flow<flow::Consumer<Item, design_1>>(setup, listens, false, deadline));
    }
    if (kind == "flow2") {
        return std::make_unique<ItemsIn<design_2>>(
            make_flow<flow::Consumer<Item, design_2>>(setup, listens, false, deadline));
    }
    if (kind == "bytes1") {
        return std::make_unique<BytesIn<design_1>>(
            make_flow<flow::Consumer<flow::Bytes, design_1>>(setup, listens, true, deadline));
    }
    if (kind == "bytes2") {
        return std::make_unique<BytesIn<design_2>>(
            make_flow<flow::Consumer<flow::Bytes, design_2>>(setup, listens, true, deadline));
    }
    if (kind == "message") {
        return std::make_unique<MessagesIn>(make_channel(setup, listens, deadline));
    }
    if (kind == "stream") return std::make_unique<StreamIn>(make_socket(setup, listens, deadline));
    if (kind.starts_with(framed_prefix)) {
        return std::make_unique<AnyIn<flow::Bytes>>(make_any<flow::AnyConsumer<flow::Bytes>>(
            parse_design(kind.substr(framed_prefix.size())), setup, listens, true, deadline));
    }
    return std::make_unique<AnyIn<Item>>(
        make_any<flow::AnyConsumer<Item>>(parse_design(kind), setup, listens, false, deadline));
}

}  // namespace millrace::faults
