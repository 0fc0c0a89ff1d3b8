package tests

import android.content.Context
import android.graphics.Bitmap
import com.example.net.Lite0
import com.example.net.Lite0GoldenTest
import edgekit.template.ImageInput
import edgekit.template.Interpolation
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Words: `golden`; `bitmap WIDTH HEIGHT COLORS OUT`; `images FILE`, whose lines are the fields of an ImageInput, an image and where to write its values. */
public fun main(words: Array<String>) {
    when (words[0]) {
        "golden" -> Lite0GoldenTest().answersAsTheDesktop()
        "bitmap" -> bitmap(words[1].toInt(), words[2].toInt(), File(words[3]), File(words[4]))
        "images" -> File(words[1]).readLines().forEach { image(it.split(" ")) }
    }
}

private fun bitmap(width: Int, height: Int, colors: File, out: File) {
    Lite0(Context(File(System.getProperty("module"), "src/main/assets")), threads = 1).use { model ->
        val outputs = model.run(Bitmap(ints(colors), width, height))
        val buffer = ByteBuffer.allocate(4 * outputs.output0.size).order(ByteOrder.LITTLE_ENDIAN)
        buffer.asFloatBuffer().put(outputs.output0)
        out.writeBytes(buffer.array())
    }
}

private fun image(fields: List<String>) {
    val (width, height, shorter, wide, high) = fields.take(5).map { it.toInt() }
    val gray = fields[5] == "GRAY"
    val channels = if (gray) 1 else 3
    val input = ImageInput(
        width, height, channels, shorter, wide, high, fields[6] == "fit", 114, fields[7].toInt(), fields[8].toInt(), Interpolation.valueOf(fields[9]),
        fields[10] == "NCHW", fields[5] == "BGR", 1.0 / 255, DoubleArray(channels) { 0.4 + 0.1 * it }, DoubleArray(channels) { 0.2 + 0.1 * it }, null,
    )
    val values = input.values(ints(File(fields[13])), fields[11].toInt(), fields[12].toInt())
    val buffer = ByteBuffer.allocate(8 * values.size).order(ByteOrder.LITTLE_ENDIAN)
    buffer.asDoubleBuffer().put(values)
    File(fields[14]).writeBytes(buffer.array())
}

private fun ints(file: File): IntArray {
    val values = ByteBuffer.wrap(file.readBytes()).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer()
    return IntArray(values.remaining()).also { values.get(it) }
}
