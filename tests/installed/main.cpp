// Finds the headers and links the libraries of an installed Millrace, and opens a device.
#include <millrace/base/error.hpp>
#include <millrace/flow/producer.hpp>
#include <millrace/message/channel.hpp>
#include <millrace/verbs/device.hpp>

#include <cstdio>

int main() {
    const millrace::verbs::DeviceFacts facts = millrace::verbs::find_device("soft0").facts();
    std::printf("%s\n", facts.name.c_str());
    try {
        (void)millrace::message::connect(millrace::connect::Address::parse("unix:/nobody/listens"),
                                         {}, millrace::base::Deadline::now());
    } catch (const millrace::base::Error& error) {
        std::printf("%s\n", error.attempted().c_str());
        return 0;
    }
    return 1;
}
