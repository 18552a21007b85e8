// Joins sales with articles that several sources have: both go to the joiner of their article. It
// wants dear articles and two numbers of each sale; its sources are told, and no more travels.
//     hash_join join unix:@a &  hash_join join unix:@b &
//     hash_join scan unix:@a unix:@b &  hash_join scan unix:@a unix:@b
#include <millrace/flow/fan_in.hpp>
#include <millrace/flow/fan_out.hpp>

#include <cstdio>
#include <map>
using namespace millrace;

struct Article {
    long number;
    double price;
    char name[80] = {};
};
struct Sale {
    long article, count;
    char receipt[100] = {};
};
struct Sold {
    long article, count;
};
struct DearerThan {
    double price;
    bool operator()(const Article& article) const { return article.price > price; }
};
struct Numbers {
    Sold operator()(const Sale& sale) const { return {sale.article, sale.count}; }
};

int main(int, char** given) try {
    const auto soon = base::Deadline::after(std::chrono::seconds{20});
    const std::string first = given[2], sold = ".sold";
    if (std::string{given[1]} == "scan") {
        auto articles =
            flow::FanOut<flow::Filtered<Article, DearerThan>>::connect({first, given[3]}, {}, soon);
        for (long i = 0; i != 1000; ++i)
            if (articles.enqueue_keyed(i, {i, double(i)}, soon) != base::Status::ok) return 1;
        if (articles.close(soon) != base::Status::ok) return 1;
        auto sales = flow::FanOut<flow::Filtered<Sale, Numbers>>::connect(
            {first + sold, given[3] + sold}, {}, soon);
        for (long i = 0; i != 5000; ++i)
            if (sales.enqueue_keyed(i % 1000, {i % 1000, 2}, soon) != base::Status::ok) return 1;
        return sales.close(soon) == base::Status::ok ? 0 : 1;
    }
    auto articles =
        flow::FanIn<Article>::listen(first, {.queue = {.filter = DearerThan{899}}, .expected = 2});
    auto sales =
        flow::FanIn<Sold>::listen(first + sold, {.queue = {.filter = Numbers{}}, .expected = 2});
    std::map<long, double> prices;
    for (Article a; articles.dequeue(a, soon) == base::Status::ok;) prices[a.number] = a.price;
    double total = 0;
    for (Sold one; sales.dequeue(one, soon) == base::Status::ok;)
        if (prices.contains(one.article)) total += double(one.count) * prices[one.article];
    std::printf("%zu articles, sold for %.0f\n", prices.size(), total);
    return sales.stats().closed == 2 ? 0 : 1;
} catch (const std::exception& error) {
    return std::fprintf(stderr, "hash_join: %s\n", error.what()), 1;
}
