package edgekit.template

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.log10

/** A golden sample: raw little-endian values, and the comparison that `edgekit test` makes of them. */
internal class Golden(private val read: (String) -> ByteArray) {
    fun floats(name: String): FloatArray = buffer(name).asFloatBuffer().let { values -> FloatArray(values.remaining()).also { values.get(it) } }

    fun bytes(name: String): ByteArray = read(name)

    fun shorts(name: String): ShortArray = buffer(name).asShortBuffer().let { values -> ShortArray(values.remaining()).also { values.get(it) } }

    fun ints(name: String): IntArray = buffer(name).asIntBuffer().let { values -> IntArray(values.remaining()).also { values.get(it) } }

    fun longs(name: String): LongArray = buffer(name).asLongBuffer().let { values -> LongArray(values.remaining()).also { values.get(it) } }

    /** Signal to error, in dB, of at least `leastDb`; integers are equal. */
    fun check(output: String, expected: Any, got: Any, leastDb: Double) {
        if (expected !is FloatArray || got !is FloatArray) {
            return check(equal(expected, got)) { "$output differs from the desktop's answer" }
        }
        check(expected.size == got.size) { "$output has ${got.size} values, the desktop's answer ${expected.size}" }
        var signal = 0.0
        var error = 0.0
        for ((index, value) in expected.withIndex()) {
            signal += value.toDouble() * value
            error += (value.toDouble() - got[index]) * (value.toDouble() - got[index])
        }
        val db = if (error == 0.0) Double.POSITIVE_INFINITY else 10.0 * log10(signal / error)
        check(db >= leastDb) { "$output: $db dB from the desktop's answer, at least $leastDb dB are demanded" }
    }

    private fun equal(expected: Any, got: Any): Boolean =
        when (expected) {
            is ByteArray -> got is ByteArray && expected.contentEquals(got)
            is ShortArray -> got is ShortArray && expected.contentEquals(got)
            is IntArray -> got is IntArray && expected.contentEquals(got)
            is LongArray -> got is LongArray && expected.contentEquals(got)
            else -> false
        }

    private fun buffer(name: String): ByteBuffer = ByteBuffer.wrap(read(name)).order(ByteOrder.LITTLE_ENDIAN)
}
