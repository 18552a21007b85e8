// A submitted call, from its request to its answer: what the client keeps of it, whatever its
// types. Used by client_core.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/message/client.hpp"
#include "millrace/rpc/codec.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/result.hpp"

namespace millrace::rpc::detail {

/// A submitted call that has no answer yet: what is to be done with it.
struct Record {
    struct Type {
        void (*take)(Record& record, const message::Answer& answer);  ///< keeps it as a result
        void (*end)(Record& record, Code code) noexcept;              ///< the same without one
        void (*finish)(Record& record);         ///< frees the record, then tells the caller
        void (*drop)(Record& record) noexcept;  ///< frees the record
    };
    static constexpr std::size_t room = 192;

    [[nodiscard]] bool is_taken() const noexcept { return type != nullptr; }

    const Type* type = nullptr;  ///< null: it is free
    std::uint64_t id = 0;
    base::Deadline deadline = base::Deadline::never();
    alignas(std::max_align_t) std::array<std::byte, room> storage;
};

/// The result that an answer says, whatever its outcome.
template <class A>
void read_result(const message::Answer& answer, Result<A>& into) {
    if (answer.outcome == message::Outcome::ok) [[likely]] {
        try {
            if (read(answer.payload, into.emplace())) [[likely]]
                return;
        } catch (const std::exception&) {
            // A codec that cannot read it.
        }
        into = Result<A>{Code::bad_answer};
    } else if (answer.outcome == message::Outcome::failed) {
        into = Result<A>{parse_error(answer.payload)};
    } else {
        into = Result<A>{code_of(answer.outcome)};
    }
}

/// A callback and the result that it is going to get.
template <class A, class Callback>
struct Submitted {
    Callback callback;
    Result<A> result{Code::dropped};

    static constexpr bool is_small = sizeof(Callback) + sizeof(Result<A>) + 16 <= Record::room;
    static void put(Record& record, Callback&& callback) {
        if constexpr (is_small) {
            static_assert(sizeof(Submitted) <= Record::room);
            new (record.storage.data()) Submitted{std::move(callback)};
        } else {
            new (record.storage.data()) Submitted* {new Submitted{std::move(callback)}};
        }
        record.type = &type;
    }
    [[nodiscard]] static Submitted& of(Record& record) noexcept {
        if constexpr (is_small) {
            return *std::launder(reinterpret_cast<Submitted*>(record.storage.data()));
        } else {
            return **std::launder(reinterpret_cast<Submitted**>(record.storage.data()));
        }
    }
    static void drop(Record& record) noexcept {
        Submitted& submitted = of(record);
        record.type = nullptr;
        if constexpr (is_small) {
            submitted.~Submitted();
        } else {
            delete &submitted;
        }
    }
    static constexpr Record::Type type{
        .take = [](Record& record,
                   const message::Answer& answer) { read_result(answer, of(record).result); },
        .end = [](Record& record, Code code) noexcept { of(record).result = Result<A>{code}; },
        .finish =
            [](Record& record) {
                Submitted done{std::move(of(record))};
                drop(record);
                std::invoke(done.callback, std::move(done.result));
            },
        .drop = drop,
    };
};

}  // namespace millrace::rpc::detail
