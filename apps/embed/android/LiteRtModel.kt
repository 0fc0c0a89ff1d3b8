package edgekit.template

import android.content.Context
import java.io.FileInputStream
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import org.tensorflow.lite.Interpreter

/** A model in the app's assets, run by LiteRT's interpreter. Tensors are found by name: their order in the file is the converter's. */
internal class LiteRtModel(
    context: Context,
    asset: String,
    private val inputs: List<TensorSpec>,
    private val outputs: List<TensorSpec>,
    threads: Int,
) : AutoCloseable {
    private val interpreter = Interpreter(map(context, asset), Interpreter.Options().apply { setNumThreads(threads) })
    private val inputOrder = order(inputs, List(interpreter.getInputTensorCount()) { interpreter.getInputTensor(it).name() })
    private val outputOrder = order(outputs, List(interpreter.getOutputTensorCount()) { interpreter.getOutputTensor(it).name() })
    private val outputBuffers = outputs.map { it.allocate() }

    /** Values in, values out, both in the order of the specs. One run at a time: the buffers are reused. */
    @Synchronized
    fun run(values: List<Any>): List<Any> {
        val packed = inputs.zip(values) { spec, value -> spec.pack(value) }
        outputBuffers.forEach { it.rewind() }
        val filled = HashMap<Int, Any>()
        outputOrder.forEachIndexed { index, tensor -> filled[tensor] = outputBuffers[index] }
        val given = arrayOfNulls<Any>(inputs.size)
        inputOrder.forEachIndexed { index, tensor -> given[tensor] = packed[index] }
        interpreter.runForMultipleInputsOutputs(given, filled)
        return outputs.zip(outputBuffers) { spec, buffer -> spec.unpack(buffer) }
    }

    override fun close() {
        interpreter.close()
    }

    private companion object {
        fun map(context: Context, asset: String): ByteBuffer =
            context.getAssets().openFd(asset).use { file ->
                FileInputStream(file.getFileDescriptor()).use { stream ->
                    stream.getChannel().map(FileChannel.MapMode.READ_ONLY, file.getStartOffset(), file.getDeclaredLength())
                }
            }

        fun order(specs: List<TensorSpec>, found: List<String>): List<Int> =
            specs.map { spec ->
                val index = found.indexOf(spec.name)
                check(index >= 0) { "the model has no tensor ${spec.name}, only $found: the asset is not the one this class was made for" }
                index
            }
    }
}
