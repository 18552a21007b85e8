// The calls that Millrace's are compared to: gRPC, unary, 64 bytes each way, over a Unix socket, by
// its asynchronous interface and without a codec, which is its fastest. A program of its own, since
// gRPC does not survive a fork. Started by grpc_calls.cpp:
//
//     millrace-grpc-echo serve unix:PATH
//     millrace-grpc-echo call unix:PATH CALLS OUTSTANDING     prints the nanoseconds of each call
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>

#include "bench/framework/windows.hpp"

namespace {

constexpr std::size_t payload_bytes = 64;
constexpr const char* method = "/millrace.Echo/Call";

void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error{what};
}

// --- the server

/// A call at the server, used again for the next one when it is done.
class Served {
  public:
    Served(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue)
        : service_{&service}, queue_{&queue} {
        wait();
    }
    /// The last step has come to its end.
    void go_on(bool went_well) {
        if (stage_ == Stage::waits && went_well) {
            stage_ = Stage::reads;
            stream_->Read(&request_, this);
        } else if (stage_ == Stage::reads && went_well) {
            stage_ = Stage::answers;
            stream_->WriteAndFinish(request_, {}, grpc::Status::OK, this);
        } else if (stage_ != Stage::waits) {
            wait();
        }
    }

  private:
    enum class Stage { waits, reads, answers };
    void wait() {
        stage_ = Stage::waits;
        context_ = std::make_unique<grpc::GenericServerContext>();
        stream_ = std::make_unique<grpc::GenericServerAsyncReaderWriter>(context_.get());
        request_.Clear();
        service_->RequestCall(context_.get(), stream_.get(), queue_, queue_, this);
    }

    grpc::AsyncGenericService* service_;
    grpc::ServerCompletionQueue* queue_;
    std::unique_ptr<grpc::GenericServerContext> context_;
    std::unique_ptr<grpc::GenericServerAsyncReaderWriter> stream_;
    grpc::ByteBuffer request_;
    Stage stage_ = Stage::waits;
};

/// Until it is killed.
void serve(const std::string& address) {
    constexpr int at_a_time = 128;
    grpc::AsyncGenericService service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterAsyncGenericService(&service);
    const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    require(server != nullptr, "cannot listen");
    std::deque<Served> calls;
    for (int i = 0; i < at_a_time; ++i) calls.emplace_back(service, *queue);
    void* tag = nullptr;
    bool went_well = false;
    while (queue->Next(&tag, &went_well)) static_cast<Served*>(tag)->go_on(went_well);
}

// --- the client

class Caller {
  public:
    Caller(const std::string& address, std::size_t outstanding)
        : stub_{grpc::CreateChannel(address, grpc::InsecureChannelCredentials())},
          calls_(outstanding) {}

    /// Makes so many calls.
    void run(std::uint64_t count) {
        std::uint64_t begun = 0;
        for (Call& call : calls_) {
            if (begun == count) break;
            begin(call);
            ++begun;
        }
        for (std::uint64_t done = 0; done < count; ++done) {
            void* tag = nullptr;
            bool went_well = false;
            require(queue_.Next(&tag, &went_well), "the completion queue ended");
            Call& call = *static_cast<Call*>(tag);
            finish(call, went_well);
            if (begun == count) continue;
            begin(call);
            ++begun;
        }
    }

  private:
    struct Call {
        std::unique_ptr<grpc::ClientContext> context;
        std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
        std::array<char, payload_bytes> payload{};
        grpc::ByteBuffer answer;
        grpc::Status status;
    };

    void begin(Call& call) {
        ++number_;
        std::memcpy(call.payload.data(), &number_, sizeof number_);
        std::memcpy(call.payload.data() + payload_bytes - sizeof number_, &number_, sizeof number_);
        const grpc::Slice slice{call.payload.data(), call.payload.size()};
        call.context = std::make_unique<grpc::ClientContext>();
        call.context->set_wait_for_ready(true);
        call.answer.Clear();
        call.reader = stub_.PrepareUnaryCall(call.context.get(), method,
                                             grpc::ByteBuffer{&slice, 1}, &queue_);
        call.reader->StartCall();
        call.reader->Finish(&call.answer, &call.status, &call);
    }
    static void finish(Call& call, bool went_well) {
        require(went_well && call.status.ok(), "a call failed");
        grpc::Slice whole;
        require(call.answer.DumpToSingleSlice(&whole).ok() && whole.size() == payload_bytes &&
                    std::memcmp(whole.begin(), call.payload.data(), payload_bytes) == 0,
                "the data that arrived is not the data that was sent");
    }

    grpc::GenericStub stub_;
    grpc::CompletionQueue queue_;
    std::vector<Call> calls_;
    std::uint64_t number_ = 0;
};

double nanoseconds_of_call(const std::string& address, std::uint64_t calls,
                           std::size_t outstanding) {
    Caller caller{address, outstanding};
    const millrace::bench::Windows windows{calls};
    caller.run(windows.warm_up);
    std::vector<double> times(millrace::bench::Windows::count);
    for (double& time : times) {
        const auto start = std::chrono::steady_clock::now();
        caller.run(windows.window);
        const std::chrono::duration<double, std::nano> taken =
            std::chrono::steady_clock::now() - start;
        time = taken.count() / static_cast<double>(windows.window);
    }
    return millrace::bench::quantile(std::move(times), 0.5);
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    try {
        if (words.size() == 2 && words[0] == "serve") {
            serve(words[1]);
            return 0;
        }
        if (words.size() == 4 && words[0] == "call") {
            std::printf("%f\n",
                        nanoseconds_of_call(words[1], std::stoull(words[2]), std::stoul(words[3])));
            return 0;
        }
        std::fputs("millrace-grpc-echo serve ADDRESS | call ADDRESS CALLS OUTSTANDING\n", stderr);
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "millrace-grpc-echo: %s\n", error.what());
        return 1;
    }
}
