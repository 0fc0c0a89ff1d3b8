package edgekit.template

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** What the artifact stores for a tensor. */
internal enum class Stored(val bytes: Int, val least: Long, val greatest: Long) {
    FLOAT32(4, 0, 0),
    INT8(1, -128, 127),
    UINT8(1, 0, 255),
    BOOL(1, 0, 1),
    INT16(2, -32768, 32767),
    INT32(4, Int.MIN_VALUE.toLong(), Int.MAX_VALUE.toLong()),
    INT64(8, Long.MIN_VALUE, Long.MAX_VALUE),
}

/**
 * One input or output. Where `scale` is not zero, integers stand for real values: real = scale * (stored - zeroPoint).
 *
 * Values cross as FloatArray (float32, and integers with a scale, in real values), ByteArray (INT8, UINT8, BOOL), ShortArray, IntArray or LongArray.
 */
internal class TensorSpec(
    val name: String,
    private val shape: String,
    private val elements: Int,
    private val stored: Stored,
    private val scale: Double = 0.0,
    private val zeroPoint: Int = 0,
) {
    fun allocate(): ByteBuffer = ByteBuffer.allocateDirect(elements * stored.bytes).order(ByteOrder.nativeOrder())

    fun pack(value: Any): ByteBuffer {
        val buffer = allocate()
        when (value) {
            is FloatArray -> sized(value.size) { if (scale == 0.0) buffer.asFloatBuffer().put(value) else quantize(value, buffer) }
            is ByteArray -> sized(value.size) { buffer.put(value) }
            is ShortArray -> sized(value.size) { buffer.asShortBuffer().put(value) }
            is IntArray -> sized(value.size) { buffer.asIntBuffer().put(value) }
            is LongArray -> sized(value.size) { buffer.asLongBuffer().put(value) }
        }
        buffer.rewind()
        return buffer
    }

    /** The values in which the caller gives this tensor, from real ones: integers without a scale are rounded and saturated. */
    fun fromReal(values: DoubleArray): Any {
        if (stored == Stored.FLOAT32 || scale != 0.0) {
            return FloatArray(values.size) { values[it].toFloat() }
        }
        val rounded = LongArray(values.size) { Math.rint(values[it]).coerceIn(stored.least.toDouble(), stored.greatest.toDouble()).toLong() }
        return when (stored.bytes) {
            1 -> ByteArray(rounded.size) { rounded[it].toByte() }
            2 -> ShortArray(rounded.size) { rounded[it].toShort() }
            4 -> IntArray(rounded.size) { rounded[it].toInt() }
            else -> rounded
        }
    }

    fun unpack(buffer: ByteBuffer): Any {
        buffer.rewind()
        if (scale != 0.0) {
            return FloatArray(elements) { ((next(buffer) - zeroPoint) * scale).toFloat() }
        }
        return when (stored) {
            Stored.FLOAT32 -> FloatArray(elements).also { buffer.asFloatBuffer().get(it) }
            Stored.INT8, Stored.UINT8, Stored.BOOL -> ByteArray(elements).also { buffer.get(it) }
            Stored.INT16 -> ShortArray(elements).also { buffer.asShortBuffer().get(it) }
            Stored.INT32 -> IntArray(elements).also { buffer.asIntBuffer().get(it) }
            Stored.INT64 -> LongArray(elements).also { buffer.asLongBuffer().get(it) }
        }
    }

    private fun sized(size: Int, put: () -> Unit) {
        require(size == elements) { "$name takes $elements values ($shape), got $size" }
        put()
    }

    /** Round half to even and saturate, as the desktop reference does. */
    private fun quantize(values: FloatArray, buffer: ByteBuffer) {
        for (value in values) {
            val step = (Math.rint(value.toDouble() / scale) + zeroPoint).coerceIn(stored.least.toDouble(), stored.greatest.toDouble()).toLong()
            when (stored.bytes) {
                1 -> buffer.put(step.toByte())
                2 -> buffer.putShort(step.toShort())
                else -> buffer.putInt(step.toInt())
            }
        }
    }

    private fun next(buffer: ByteBuffer): Int =
        when (stored) {
            Stored.UINT8 -> buffer.get().toInt() and 0xFF
            Stored.INT8 -> buffer.get().toInt()
            Stored.INT16 -> buffer.getShort().toInt()
            else -> buffer.getInt()
        }
}
