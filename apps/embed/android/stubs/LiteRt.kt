// Signatures of LiteRT's interpreter API (com.google.ai.edge.litert:litert 1.x) that the wrapper calls: compiled against, never shipped.
package org.tensorflow.lite

import java.nio.ByteBuffer

public interface Tensor {
    public fun name(): String
}

public class Interpreter(model: ByteBuffer, options: Options) : AutoCloseable {
    public class Options {
        public fun setNumThreads(threads: Int): Options = throw UnsupportedOperationException("$threads")
    }

    init {
        throw UnsupportedOperationException("$model $options")
    }

    public fun getInputTensorCount(): Int = throw UnsupportedOperationException()

    public fun getInputTensor(index: Int): Tensor = throw UnsupportedOperationException("$index")

    public fun getOutputTensorCount(): Int = throw UnsupportedOperationException()

    public fun getOutputTensor(index: Int): Tensor = throw UnsupportedOperationException("$index")

    public fun runForMultipleInputsOutputs(inputs: Array<Any?>, outputs: Map<Int, Any>): Unit = throw UnsupportedOperationException("$inputs $outputs")

    override fun close(): Unit = throw UnsupportedOperationException()
}
