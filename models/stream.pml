/* One direction of a byte stream: stream/sender.hpp, stream/receiver.hpp.
 *
 *   Sender     gives bytes to advertisements, or to the receiver's ring; takes ADVERT, ACK, CANCEL
 *   Receiver   advertises, and behind the ring again what the sender has turned away from; copies out of
 *              the ring, cancels now and then
 *
 * Modelled: pipes that keep order and take as long as they like in both directions, so that every
 * advertisement comes late in every way; phases, estimates, hold-off, MSG_WAITALL, cancelling, FIN;
 * receives in any number up to the window, sends of any size.
 * A send that awaits an advertisement for some time is one of those that take as long as they like, and so
 * is a receiver that advertises fewer receives than it has.
 * Left out: credits (stream_credits.pml), the end of the ring, cancelling any but the first receive,
 * and that the code copies before it advertises (here it may be the other way round).
 *
 * Settings: total (bytes of the stream), ring, window (receives at a time), size (of a receive),
 * cancels (how many), wait_all (receives with MSG_WAITALL. 0: none, 1: all, 2: every second), checked
 * (0: the sender believes any ADVERT, so that what a fault leads to is seen, and not that it is noticed).
 * messages (1: what is sent has marks in it, of one place each, and a receive ends with a mark: the messages'
 * lengths are any, also 0, and beyond the receive's; total counts the marks).
 * advertises (0: the receiver does not, as in mode indirect).
 * again (0: not what is void, which is filled from the ring before: as work 003 has it).
 * lends (1: where no receive is outstanding, the program may look at bytes in the ring, and take some of them).
 * forgoes (1: the sender may leave the advertisements that it has, if it has not used the first, and give what
 * is next to the ring).
 * holds (1: the sender gives no more to the ring than fits into it when it is empty, and waits for that).
 */
#include "common.pml"

local byte total, ring, window, size, cancels, wait_all, checked, holds, messages, lends, advertises, again, forgoes;
hidden byte buffer_is_outstanding, match_is_right, bytes_are_in_order, fits, advert_is_possible,
    fresh_is_kept, message_is_whole, lent_stays;

mtype = { DIRECT, INDIRECT, CANCELLED, FIN, ADVERT, ACK, CANCEL };
chan data = [8] of { mtype, byte, byte, byte };           /* sequence, length, receive (+ MARK) */
chan control = [16] of { mtype, byte, byte, byte, byte }; /* sequence or taken, phase, receive, length */

#define is_direct(phase) (phase % 2 == 0)
#define MARK 64 /* a message ends with the transfer */
#define waits(receive) (wait_all == 1 || (wait_all == 2 && receive % 2 == 1))

/* ---- the receiver's, which assertions of the sender look at */
byte first;      /* receives before it are the program's again */
byte posted;
byte received;   /* S_r */
byte buffered;   /* b_r */
byte receiver_phase;

proctype Sender() {
    byte sent;      /* S_s */
    byte phase;     /* P_s */
    byte last;      /* phase of the last ADVERT */
    byte queued;    /* advertisements in q_A: of the receives head, head + 1, … */
    byte head, remaining; /* remaining: of the head */
    bool used;      /* ... some of it has been used */
    byte promised;
    byte least, least_anew; /* places that the next ADVERT has at least; if it begins a phase */
    byte written, taken; /* of the ring */
    bool answers, ended;
    byte left;      /* of the message, with its mark */
    byte given_up;  /* places that are not sent, because an advertisement has no room for them */
    byte n, s, p, r, most;
    mtype kind;
end: /* where it waits for ever, the receiver does, too, or has everything */
    do
    :: atomic { !ended && sent < total - given_up &&
                (queued > 0 || (written - taken < ring && (!holds || written == taken))) ->
        if
        :: forgoes && queued > 0 && !used && written - taken < ring && (!holds || written == taken) ->
            phase = (is_direct(phase) || wrong(forgone_unraised) -> phase : last + 1);
            queued = 0; head = 0; remaining = 0; promised = 0
        :: skip
        fi;
        most = total - given_up - sent;
        if
        :: messages && left == 0 ->
            left = 1;
            do
            :: left < most -> left++
            :: break
            od
        :: else
        fi;
        most = (messages && left < most -> left : most);
        if
        :: queued > 0 -> most = (most < remaining + messages -> most : remaining + messages)
        :: else -> most = (most < ring - (written - taken) -> most : ring - (written - taken))
        fi;
        n = 1;
        do
        :: n < most -> n++
        :: break
        od;
        if
        :: messages && queued > 0 && n == remaining && n < left -> n++ /* with the mark */
        :: else
        fi;
        r = 0;
        if
        :: messages && (n == left || (queued > 0 && n == remaining + 1)) ->
            r = MARK;
            given_up = given_up + left - n;
            left = 0
        :: messages && !(n == left || (queued > 0 && n == remaining + 1)) -> left = left - n
        :: else
        fi;
        if
        :: queued > 0 ->
            if
            :: !is_direct(phase) -> phase = last
            :: else
            fi;
            buffer_is_outstanding = head >= first;
            assert(buffer_is_outstanding);
            data!DIRECT, sent, n, head + r;
            promised = promised - (waits(head) -> remaining : 1);
            remaining = remaining - (r == MARK -> n - 1 : n);
            used = true;
            if
            :: messages && r != MARK -> promised = promised + 1
            :: waits(head) && remaining > 0 && !wrong(wait_all_given_up) ->
                promised = promised + remaining
            :: else -> queued--; head++; remaining = size; used = false
            fi;
            if
            :: queued == 0 -> head = 0; remaining = 0
            :: else
            fi
        :: else ->
            if
            :: is_direct(phase) -> phase++; least_anew = sent + n
            :: else
            fi;
            data!INDIRECT, sent, n, r;
            written = written + n
        fi;
        sent = sent + n;
        n = 0; most = 0; r = 0
       }
    :: atomic { answers ->
        data!CANCELLED, sent, 0, 0;
        least = sent; least_anew = sent;
        answers = false
       }
    :: atomic { !ended && !answers && sent == total - given_up -> data!FIN, sent, 0, 0; ended = true;
        queued = 0; head = 0; remaining = 0; promised = 0; used = false }
    :: atomic { control?kind, s, p, r, n ->
        if
        :: kind == ACK ->
            fits = s > taken && s <= written;
            assert(fits);
            taken = s
        :: kind == CANCEL && !ended ->
            if
            :: wrong(cancel_keeps_adverts)
            :: else -> queued = 0; head = 0; remaining = 0; promised = 0; used = false
            fi;
            answers = true
        :: kind == ADVERT && !ended ->
            advert_is_possible = !answers &&
                (is_direct(phase) -> p == phase : (queued > 0 -> p == last : p == last || p == last + 2)) &&
                s >= (p == last -> least : least_anew) && (p < phase || s <= sent + promised);
            advert_is_possible = advert_is_possible || !checked;
            assert(advert_is_possible);
            least_anew = (p != last && s >= least_anew -> s + 1 : least_anew);
            least = s + (waits(r) -> n : 1);
            last = p;
            if
            :: !is_direct(phase) && (p < phase || (s < sent && !wrong(stale_by_phase_alone))) ->
                fresh_is_kept = !(len(data) == 0 && buffered == 0 && received == sent && r == first &&
                                  p == receiver_phase);
                assert(fresh_is_kept);
                if
                :: phase < p && !wrong(no_phase_raise) -> phase = p + 1
                :: else
                fi
            :: else ->
                if
                :: queued == 0 -> head = r; remaining = n
                :: else
                fi;
                queued++;
                promised = promised + (waits(r) -> n : 1)
            fi
        :: else
        fi;
        kind = 0; s = 0; p = 0; r = 0; n = 0
       }
    od
}

/* The first receive is done with. */
inline complete() {
    if
    :: advertised > 0 ->
        advertised--;
        if
        :: waits(first) || !is_direct(receiver_phase) || wrong(estimate_high) -> skip
        :: else -> estimate = estimate - (wrong(estimate_low) -> 2 : 1)
        fi
    :: else
    fi;
    first++;
    filled = 0
}

/* n bytes for the first receive. */
inline take(n) {
    filled = filled + n;
    received = received + n
}

/* The mark of the first receive's message. */
inline take_mark() {
    received++;
    if
    :: wrong(mark_not_estimated) || !is_direct(receiver_phase)
    :: else -> estimate++
    fi;
    begun = false;
    complete()
}

/* The advertisements that are out and not void. */
#define live (is_direct(receiver_phase) -> advertised : 0)

proctype Receiver() {
    byte filled;     /* of the first receive */
    byte advertised;
    byte estimate;   /* S'_r, in even phases */
    byte taken, acknowledged;
    byte marks;      /* of the places in the ring, those that are marks: a bit each */
    bool begun;      /* the first receive has places of a message, and not its mark */
    byte lent;       /* places of the ring that the program looks at */
    byte asked;      /* cancels so far */
    byte cancelled;  /* 1 + the receive that waits for CANCELLED */
    bool cancelling, ended;
    byte n, s, r;
    mtype kind;
    do
    :: ended && buffered == 0 -> break
    :: atomic { posted - first < window && posted < total + cancels -> posted++ }
    :: atomic { lends && lent == 0 && buffered > 0 && first == posted ->
        lent = 1;
        do
        :: lent < buffered -> lent++
        :: break
        od;
        if
        :: wrong(lent_acknowledged) -> control!ACK, taken + lent, 0, 0, 0; acknowledged = taken + lent
        :: else
        fi
       }
    :: atomic { lent > 0 -> /* given back, and some of it is read */
        lent_stays = lent <= buffered;
        assert(lent_stays);
        n = 0;
        do
        :: n < lent -> n++
        :: break
        od;
        buffered = buffered - n;
        taken = taken + n;
        received = received + n;
        marks = marks >> n;
        lent = 0; n = 0
       }
    :: atomic { messages && (lent == 0 || wrong(copied_while_lent)) && buffered > 0 && first < posted ->
        buffered--;
        taken++;
        if
        :: marks & 1 -> take_mark()
        :: else -> /* dropped, where the receive is full */
            received++;
            begun = true;
            filled = (filled < size -> filled + 1 : size)
        fi;
        marks = marks >> 1
       }
    :: atomic { !messages && (lent == 0 || wrong(copied_while_lent)) && buffered > 0 && first < posted ->
        n = (buffered < size - filled -> buffered : size - filled);
        buffered = buffered - n;
        taken = taken + n;
        take(n);
        if
        :: filled == size || !waits(first) -> complete()
        :: else
        fi;
        n = 0
       }
    :: atomic { taken != acknowledged ->
        acknowledged = taken;
        if
        :: wrong(ack_lost)
        :: else -> control!ACK, taken, 0, 0, 0
        fi
       }
    :: atomic { advertises && !ended && !cancelling && first + live < posted &&
                !(messages && live == 0 && filled == size) &&
                (buffered == 0 || wrong(no_hold_off)) && (again || live == advertised) ->
        if
        :: !is_direct(receiver_phase) -> /* what is void is advertised again */
            receiver_phase = (wrong(void_phase_again) -> receiver_phase - 1 : receiver_phase + 1);
            advertised = 0;
            estimate = (wrong(void_estimate_kept) -> estimate :
                        (wrong(no_hold_off) -> received + buffered : received))
        :: else
        fi;
        r = first + advertised;
        n = (advertised == 0 -> size - filled : size);
        control!ADVERT, estimate, receiver_phase, r, n;
        estimate = estimate + (waits(r) -> n : 1);
        advertised++;
        n = 0; r = 0
       }
    :: atomic { asked < cancels && first < posted && !cancelling && !ended ->
        asked++;
        if
        :: advertised > 0 && !wrong(cancelled_at_once) ->
            cancelling = true;
            cancelled = first + 1;
            control!CANCEL, 0, 0, 0, 0
        :: advertised == 0 && begun && !wrong(cancelled_in_message) -> skip
        :: else ->
            message_is_whole = !begun;
            assert(message_is_whole);
            if
            :: advertised > 0 -> advertised--
            :: else
            fi;
            first++;
            filled = 0
        fi
       }
    :: atomic { data?kind, s, n, r ->
        bytes_are_in_order = s == received + buffered;
        assert(bytes_are_in_order);
        if
        :: kind == DIRECT ->
            match_is_right = r % MARK == first && advertised > 0 && is_direct(receiver_phase) && buffered == 0;
            assert(match_is_right);
            fits = (r >= MARK -> n - 1 : n) <= size - filled;
            assert(fits);
            if
            :: messages ->
                n = (r >= MARK -> n - 1 : n);
                filled = filled + n;
                received = received + n;
                estimate = estimate + n;
                begun = true
            :: else ->
                take(n);
                estimate = (waits(first) -> estimate : estimate + n)
            fi;
            if
            :: messages ->
                if
                :: r >= MARK -> take_mark()
                :: else
                fi
            :: !messages && (filled == size || !waits(first)) -> complete()
            :: else
            fi
        :: kind == INDIRECT ->
            if
            :: is_direct(receiver_phase) -> receiver_phase++
            :: else
            fi;
            buffered = buffered + n;
            fits = buffered <= ring;
            assert(fits);
            if
            :: r >= MARK -> marks = marks | (1 << (buffered - 1))
            :: else
            fi
        :: kind == CANCELLED ->
            cancelling = false;
            advertised = 0;
            estimate = received;
            if
            :: cancelled == first + 1 && begun && !wrong(cancelled_in_message) -> skip
            :: cancelled == first + 1 && !(begun && !wrong(cancelled_in_message)) ->
                message_is_whole = !begun;
                assert(message_is_whole);
                first++;
                filled = 0
            :: else
            fi;
            cancelled = 0
        :: kind == FIN ->
            message_is_whole = !(messages && buffered == 0 && begun);
            assert(message_is_whole);
            ended = true;
            cancelling = false
        fi;
        kind = 0; s = 0; n = 0; r = 0
       }
    od;
    bytes_are_in_order = messages || received == total;
    assert(bytes_are_in_order)
}

init {
    atomic {
        start();
        c_code {
            now.total = setting("MODEL_total", 4);
            now.ring = setting("MODEL_ring", 2);
            now.window = setting("MODEL_window", 2);
            now.size = setting("MODEL_size", 2);
            now.cancels = setting("MODEL_cancels", 0);
            now.checked = setting("MODEL_checked", 1);
            now.wait_all = setting("MODEL_wait_all", 0);
            now.holds = setting("MODEL_holds", 0);
            now.lends = setting("MODEL_lends", 0);
            now.advertises = setting("MODEL_advertises", 1);
            now.again = setting("MODEL_again", 1);
            now.messages = setting("MODEL_messages", 0);
            now.forgoes = setting("MODEL_forgoes", 0);
        };
        run Sender(); run Receiver()
    }
}
