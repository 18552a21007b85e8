/* The credits of a byte stream's messages: stream/credits.hpp, stream/connection.hpp.
 *
 *   End   sends transfers, advertisements and acknowledgements, and takes those of the other end
 *
 * Modelled: two ends that both send and both receive, credits that travel with every message, the
 * three tiers in which they are spent, CREDIT. An end that has sent and received everything goes on
 * answering.
 * Left out: what messages say besides (stream.pml). Credits travel as differences, for small states.
 *
 * Settings: slots (receives that each end has posted), reserve, threshold (as credits.hpp has them for
 * 6; fewer slots need no others), transfers (of each end), adverts (of each end), ring (transfers that are not taken yet).
 */
#include "common.pml"

local byte slots, reserve, threshold, transfers, adverts, ring;
hidden byte message_finds_a_receive;

mtype = { TRANSFER, ADVERT, ACK, CREDIT };
chan pipes[2] = [8] of { mtype, byte }; /* from this end: with it, the credits that it returns */

inline post(kind) {
    message_finds_a_receive = len(pipes[side]) < slots;
    assert(message_finds_a_receive);
    available--;
    pipes[side]!kind, owed;
    owed = 0
}

inline take_messages() {
    atomic { pipes[1 - side]?kind, returned ->
        available = available + returned;
        returned = 0;
        if
        :: wrong(credit_leaked) && kind == TRANSFER
        :: else -> owed++
        fi;
        if
        :: kind == TRANSFER -> buffered++; arrived++
        :: kind == ACK -> unread = 0
        :: else
        fi;
        kind = 0
    }
}

inline return_credits() {
    atomic { owed >= threshold && available > 0 && !wrong(never_returned) -> post(CREDIT) }
}

inline acknowledge() {
    atomic { acknowledges && (available > 1 || (wrong(last_credit_spent) && available > 0)) ->
        acknowledges = false;
        post(ACK)
    }
}

/* The program at this end receives all that there is. For an ACK that says so, `ring` transfers more. */
inline copy() {
    atomic { buffered > 0 && (buffered == ring || arrived == transfers) ->
        buffered = 0; acknowledges = true }
}

proctype End(bit side) {
    byte available = slots, owed, returned;
    byte sent, advertised, unread; /* unread: transfers since the last ACK */
    byte arrived, buffered;
    bool acknowledges;
    mtype kind;
    do
    :: atomic { sent < transfers && unread < ring &&
                available > (wrong(no_reserve) -> 0 : reserve) ->
        sent++; unread++; post(TRANSFER) }
    :: atomic { advertised < adverts &&
                (available > 1 || (wrong(last_credit_spent) && available > 0)) ->
        advertised++; post(ADVERT) }
    :: take_messages()
    :: copy()
    :: acknowledge()
    :: return_credits()
    :: atomic { sent == transfers && advertised == adverts && arrived == transfers &&
                buffered == 0 && !acknowledges -> break }
    od;
end:
    do
    :: take_messages()
    :: return_credits()
    od
}

init {
    atomic {
        start();
        c_code {
            now.slots = setting("MODEL_slots", 5);
            now.reserve = setting("MODEL_reserve", 2);
            now.threshold = setting("MODEL_threshold", 2);
            now.transfers = setting("MODEL_transfers", 5);
            now.adverts = setting("MODEL_adverts", 1);
            now.ring = setting("MODEL_ring", 5);
        };
        run End(0); run End(1)
    }
}
